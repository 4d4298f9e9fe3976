"""Which matrix gets how many bits. `sensitivity`: what each costs. `budget`: the best choices within a size. `auto`:
both for folders. `ladder`: wider steps for the matrices that hurt."""

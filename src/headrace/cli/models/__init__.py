"""Commands about models: download, describe, convert, judge."""

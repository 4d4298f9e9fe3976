// The engine's live feed: one connection, made again when it breaks, and none while nobody looks.

import { ask, events, headers } from "../common/server.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

export class Feed {
  /** `tick` gets each event, `lost` a Refusal when there is no feed. `key` is asked for at each connection. */
  constructor({ key, tick, lost }) {
    Object.assign(this, { key, tick, lost });
    this.connection = null;
    document.addEventListener("visibilitychange", () => this.restart());
    this.restart();
  }

  /** Connect again, with the present key. */
  restart() {
    this.connection?.abort();
    this.connection = null;
    if (!document.hidden) this.run();
  }

  async run() {
    const connection = new AbortController();
    this.connection = connection;
    let pause = FIRST_PAUSE_MS;
    while (!connection.signal.aborted) {
      try {
        const response = await ask("live", { headers: headers(this.key()), signal: connection.signal });
        for await (const tick of events(response)) {
          pause = FIRST_PAUSE_MS;
          if (connection.signal.aborted) return;
          this.tick(tick);
        }
      } catch (error) {
        if (error.name === "AbortError") return;
        this.lost(error);
        if (error.status === 401 || error.status === 403) return; // until there is another key
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
  }
}

// The mill wheel and the water under the header: they move as fast as the engine puts out tokens, and rest with it.

import { byId, calm } from "./dom.js";

const TURN_AT = 4000; // tokens for one turn

export class Wheel {
  constructor() {
    this.wheel = byId("wheel-turning");
    this.water = byId("race");
    this.rate = 0; // tokens a second, as the wheel feels it
    this.goal = 0;
    this.travelled = 0;
    this.moving = false;
  }

  take(tokensPerSecond) {
    this.goal = tokensPerSecond;
    if (this.goal > 0 && !this.moving && !calm.matches) this.run();
  }

  run() {
    this.moving = true;
    let before = performance.now();
    const frame = (time) => {
      const seconds = Math.min(0.1, Math.max(0, (time - before) / 1000));
      before = time;
      this.rate += (this.goal - this.rate) * Math.min(1, seconds * 2.5); // it has weight
      // The square root of the rate: a slow model must move it, and a fast one must not blur it.
      this.travelled += Math.sqrt(this.rate) * seconds * (60 / Math.sqrt(TURN_AT));
      this.wheel.setAttribute("transform", `rotate(${((this.travelled * 6) % 360).toFixed(2)} 32 32)`);
      this.water.style.setProperty("--run", `${((this.travelled * 5) % 64).toFixed(1)}px`);
      if (this.rate < 0.5 && this.goal === 0) {
        this.moving = false;
        this.rate = 0;
        return;
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }
}

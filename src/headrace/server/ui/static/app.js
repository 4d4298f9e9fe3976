// Where the page is put together.

import { BlockMaps } from "./engine/blocks.js";
import { Chat } from "./chat/chat.js";
import { byId, count } from "./common/dom.js";
import { Feed } from "./engine/feed.js";
import { Gauges } from "./engine/gauges.js";
import { Lanes } from "./engine/lanes.js";
import { laneName } from "./engine/names.js";
import { Replay } from "./engine/replay.js";
import { ask, headers } from "./common/server.js";
import { Settings } from "./common/settings.js";
import { LanesTable } from "./engine/table.js";
import { startTheme } from "./common/theme.js";
import { phaseLegend, Timeline } from "./engine/timeline.js";
import { Traffic } from "./engine/traffic.js";
import { Wheel } from "./common/wheel.js";

startTheme();
views();
phaseLegend();

let models = [];
let lastTick = null;
let key = "";
let loading = false;

const settings = new Settings(() => {
  showModel();
  if (settings.key === key) return;
  key = settings.key;
  clearTimeout(settings.soon);
  settings.soon = setTimeout(() => {
    feed.restart();
    loadModels();
  }, 400); // not at every letter of a key
});
key = settings.key;

const lanes = new Lanes();
const timeline = new Timeline(lanes);
const parts = [new Gauges(), new BlockMaps(), new LanesTable()];
const wheel = new Wheel();
const chat = new Chat(settings, { answered: (id) => timeline.mine.add(laneName(id)) });
new Traffic({
  settings,
  length: () => models[0]?.max_model_len ?? null,
  preemptions: () => lastTick?.preemptions ?? 0,
});

const replay = new Replay({
  show: (tick, last) => (last ? take(tick) : lanes.take(tick)),
  reset: () => {
    lanes.clear();
    lastTick = null;
    timeline.offset = null;
  },
  clock: (speed) => timeline.setSpeed(speed),
  left: () => feed.restart(),
});
const feed = new Feed({ key: () => settings.key, tick: (tick) => replay.active || take(tick), lost });
chat.suggest(false);
loadModels();

function take(tick) {
  if (!tick.lanes) {
    wheel.take(0);
    if (!tick.silent) lanes.endAll(); // they went with their engine
    say("trouble", tick.silent ? "engine busy, no news" : `engine ${tick.state}`);
    return;
  }
  if (lastTick && tick.now < lastTick.now) lanes.clear(); // another engine, with a clock of its own
  lastTick = tick;
  lanes.take(tick);
  timeline.tick(tick.now);
  for (const part of parts) part.take(tick);
  wheel.take(tick.tokens_per_s);
  const busy = tick.running + tick.waiting;
  if (tick.state !== "ready") say("trouble", `engine ${tick.state}`);
  else say(busy ? "working" : "ready", busy ? `${count(busy)} at work` : "ready");
  if (!models.length) loadModels();
}

function lost(refusal) {
  if (replay.active) return;
  wheel.take(0);
  if (refusal.status === 401) say("trouble", "needs a key");
  else if (refusal.status === 403) {
    say("ready", "chat only");
    byId("state").title = "This key may chat; the engine is shown to keys with admin rights.";
    if (!models.length) loadModels();
  } else say("trouble", refusal.status === 429 ? "too many pages watch" : "no connection");
}

/** The state in the header. Screen readers hear changes of kind only, not every count. */
function say(kind, words) {
  const state = byId("state");
  state.setAttribute("aria-live", state.dataset.state === kind ? "off" : "polite");
  state.dataset.state = kind;
  if (byId("state-text").textContent !== words) byId("state-text").textContent = words;
  state.title = words;
}

async function loadModels() {
  if (loading) return;
  loading = true;
  try {
    const response = await ask("v1/models", { headers: headers(settings.key) });
    models = (await response.json()).data;
    settings.offer(models.map((model) => model.id));
    showModel();
    chat.suggest(models[0]?.root === "tale");
  } catch {
    models = []; // the feed says what is wrong, and asks again when it works
  } finally {
    loading = false;
  }
}

function showModel() {
  const chosen = models.find((model) => model.id === settings.values.model) ?? models[0];
  byId("model-name").textContent = chosen ? chosen.id : "";
}

/** Where there is room for one view only, two tabs choose it. */
function views() {
  const tabs = [byId("tab-chat"), byId("tab-engine")];
  const choose = (tab) => {
    document.body.dataset.view = tab.dataset.view;
    for (const other of tabs) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
    }
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      event.preventDefault();
      const other = tabs[1 - index];
      choose(other);
      other.focus();
    });
  });
}

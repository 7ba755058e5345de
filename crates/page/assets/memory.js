// Who holds which shared memory, and which of it is stale?

import { age, badge, bytes, el, freshId, number, show, table } from "./dom.js";
import { other } from "./metrics.js";
import * as server from "./server.js";

const EVERY_MS = 2000;

export function memory(state) {
  const stale = el("input", { type: "checkbox", id: freshId(), on: { change: () => draw() } });
  const seenBy = el("p", { class: "hint" });
  const tiles = el("div", { class: "tiles many" });
  const regions = el("div");
  const sessions = el("div");
  const leases = el("div");
  const node = el("div", {},
    el("h1", { text: "Shared memory" }), seenBy, tiles,
    el("section", { class: "card" }, el("div", { class: "head" }, el("h2", { class: "grow", text: "Regions" }), el("label", { class: "check", for: stale.id }, stale, "Only what is stale")), regions),
    el("section", { class: "card" }, el("h2", { text: "Sessions" }), sessions),
    el("section", { class: "card" }, el("h2", { text: "Leases" }), leases));
  node.style.setProperty("display", "contents");
  let told = null;
  let toldAt = 0;

  function draw() {
    const { history } = state;
    if (history.last) show(tiles, ...tilesOf(history.last, told));
    if (!told) return;
    seenBy.textContent = told.is_operator ? "You see what all clients hold, as root and the user who runs the server may."
      : `You see what ${told.seen_by} holds. Root and the user who runs the server see what all clients hold.`;
    show(regions, ...regionTable(told, stale.checked, history.last));
    show(sessions, sessionTable(told));
    show(leases, ...leaseTable(told));
  }

  return {
    title: "Shared memory",
    node,
    async update() {
      if (state.visitor?.may_call && performance.now() - toldAt > EVERY_MS) {
        told = await server.memory();
        toldAt = performance.now();
      }
      draw();
    },
  };
}

function tilesOf(sample, told) {
  const all = [
    ["System regions", number(other("nerite_shm_regions.system")(sample))],
    ["CUDA regions", number(other("nerite_shm_regions.cuda")(sample))],
    ["Mapped", bytes(other("nerite_shm_mapped_bytes")(sample))],
    ["Sessions", number(other("nerite_sessions")(sample))],
    ["Lent", bytes(other("nerite_lease_bytes.lent")(sample)), told?.pools ? `of ${bytes(told.pools.bytes_max)}` : ""],
    ["Held for clients", bytes(other("nerite_memory_budget_bytes.used")(sample)), `of ${bytes(other("nerite_memory_budget_bytes.max")(sample))}`],
  ];
  return all.map(([label, value, more]) => el("div", { class: "card tile" }, el("span", { text: label }), el("b", { text: value }), more ? el("small", { text: more }) : null));
}

function holder(region, told) {
  if (region.session) {
    const session = told.sessions.find((one) => one.session === region.session);
    return session ? `session ${region.session}, ${who(session)}` : `session ${region.session}`;
  }
  return region.owner || (told.is_operator ? "operator" : told.seen_by);
}

const who = ({ command, pid, uid }) => `${command || "a program"}${pid ? ` (${pid})` : ""}, user ${uid}`;

function regionTable(told, onlyStale, sample) {
  const shown = told.regions.filter((region) => !onlyStale || region.is_stale);
  if (shown.length === 0) return [el("p", { class: "hint", text: onlyStale ? "Nothing is stale." : "No region is registered." })];
  const rows = shown.map((region) => [
    el("span", { class: "mono", text: region.name }),
    region.kind === "cuda" ? `device ${region.device_id}` : el("span", {}, el("span", { class: "mono", text: region.key }), region.offset ? ` from byte ${region.offset}` : ""),
    bytes(region.byte_size),
    holder(region, told),
    String(region.in_flight),
    el("span", {}, badge(region.is_stale ? "stale" : "good", region.is_stale ? "warn" : "good"), region.is_stale ? el("span", { class: "hint", text: ` ${region.state}` }) : null),
  ]);
  const count = sample ? other("nerite_shm_regions.system")(sample) + other("nerite_shm_regions.cuda")(sample) : NaN;
  const more = told.more_regions ? el("p", { class: "hint", text: `The first ${told.regions.length} of ${number(count)} are listed.` }) : null;
  return [table("Regions", [["Name"], ["Object"], ["Size", "num"], ["Held by"], ["In flight", "num"], ["State"]], rows), more];
}

function sessionTable({ sessions, regions, leases }) {
  if (sessions.length === 0) return el("p", { class: "hint", text: "No session is open." });
  const rows = sessions.map((session) => [
    String(session.session), el("span", {}, who(session), session.client ? el("span", { class: "hint", text: ` ${session.client}` }) : null), age(session.age_ms),
    String(session.regions), `${session.leases} (${bytes(session.lease_bytes)})`, String(session.in_flight),
  ]);
  return table("Sessions", [["Number"], ["Who"], ["Age", "num"], ["Regions", "num"], ["Leases", "num"], ["In flight", "num"]], rows);
}

function leaseTable(told) {
  const rows = told.leases.map((lease) => [
    el("span", { class: "mono", text: lease.name }), `session ${lease.session}`, bytes(lease.byte_size),
    badge(lease.lent ? "lent" : "idle", lease.lent ? "good" : ""), String(lease.in_flight),
  ]);
  const { pools } = told;
  const parts = [];
  if (pools) {
    const used = pools.classes.reduce((sum, one) => sum + one.byte_size * (one.lent + one.free + one.held), 0);
    parts.push(el("p", { class: "hint", text: `${bytes(used)} of ${bytes(pools.bytes_max)} are lent or kept, at most ${bytes(pools.bytes_peak)} at one time.` }),
      el("div", { class: "meter" }, el("span", { style: { width: `${Math.min(100, (100 * used) / Math.max(pools.bytes_max, 1))}%` } })));
  }
  if (rows.length === 0) return [...parts, el("p", { class: "hint", text: "Nothing is lent." })];
  const more = told.more_leases ? el("p", { class: "hint", text: `The first ${rows.length} leases are listed.` }) : null;
  return [...parts, table("Leases", [["Name"], ["Held by"], ["Size", "num"], ["State"], ["In flight", "num"]], rows), more];
}

"use strict";
// The page has one picture (sections of rows of fields), is told differences, and draws what has changed.
// Everything in a picture is data: it becomes text or an attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";
const place = new URL(location.href);
const parts = place.pathname.split("/").slice(1);
const subject = subjectOf();
let picture = {};
let person = { principal: null, may_change: false, mark: null };
let source = null;
let isDrawing = false;

function subjectOf() {
  const query = place.searchParams;
  switch (parts[0]) {
    case "logs": return { kind: "logs", name: query.get("prefix") || "", after: query.get("after") || "" };
    case "log": return { kind: "log", name: decoded(parts.slice(1).join("/")), number: query.get("skip") || "" };
    case "ledgers": return { kind: "ledgers", number: query.get("below") || "" };
    case "ledger": return { kind: "ledger", number: parts[1] || "" };
    case "repair": return { kind: "repair" };
    default: return { kind: "cluster" };
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // The console says that there is no log of this name.
  }
}

// --- making elements -------------------------------------------------------------------------------

function make(name, attributes = {}, ...inside) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) element.setAttribute(key, value);
  element.append(...inside.filter((each) => each !== null && each !== undefined));
  return element;
}

function draw(name, attributes, ...inside) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...inside);
  return element;
}

function link(path, text) { return make("a", { href: path }, text); }
function logLink(name) { return link("/log/" + name.split("/").map(encodeURIComponent).join("/"), name); }
function ledgerLink(number) { return link(`/ledger/${number}`, String(number)); }

// --- numbers and words -----------------------------------------------------------------------------

function count(value) { return value === null || value === undefined ? "–" : value.toLocaleString("en"); }
function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(value) < 1024 || unit === "TiB") return `${unit === "B" ? Math.round(value) : value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
}
function milliseconds(value) { return value === null || value === undefined ? "–" : value < 10 ? `${value.toFixed(2)} ms` : `${Math.round(value)} ms`; }
function clock(seconds) { return new Date(seconds * 1000).toLocaleTimeString("en-GB"); }
function moment(ms) { return ms ? new Date(ms).toISOString().slice(0, 19).replace("T", " ") + " UTC" : "never"; }
function plural(number, word) { return `${count(number)} ${word}${number === 1 ? "" : "s"}`; }

const STATES = {
  writable: ["good", "●"], "read-only": ["note", "◐"], unavailable: ["bad", "✕"], incompatible: ["bad", "✕"], unknown: ["faint", "?"],
  led: ["good", "●"], "taken over": ["note", "▲"], nobody: ["faint", "○"], sealed: ["faint", "■"],
  OPEN: ["good", "●"], IN_RECOVERY: ["note", "▲"], CLOSED: ["faint", "■"], deleted: ["bad", "✕"], missing: ["bad", "✕"],
  damaged: ["bad", "✕"], looking: ["faint", "…"],
};
const WORDS = { IN_RECOVERY: "in recovery", OPEN: "open", CLOSED: "closed", nobody: "no leader", missing: "there is no such log" };

function state(word, why = null) {
  const [tone, sign] = STATES[word] || ["faint", "?"];
  return make("span", { class: `state ${tone}` }, make("span", { "aria-hidden": "true" }, `${sign} `), WORDS[word] || word,
    why ? make("span", { class: "why" }, why) : null);
}

// --- keyed drawing: what has not changed is not touched, so the focus stays where it is -------------

function put(parent, key, value) {
  // value: a text, or [a text that stands for what is drawn, a function that draws it].
  const [sign, drawn] = Array.isArray(value) ? value : [String(value), null];
  if (parent.dataset[key] === sign) return;
  parent.dataset[key] = sign;
  parent.replaceChildren(drawn ? drawn() : sign);
}

function table(host, caption, columns, rows, nothing) {
  let body = host.querySelector("tbody");
  if (!body) {
    host.className = "table";
    body = make("tbody");
    const heads = columns.map((column) => make("th", { scope: "col", class: column.number ? "number" : null }, column.title));
    host.replaceChildren(make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), body));
  }
  const held = new Map([...body.children].map((each) => [each.dataset.key, each]));
  let before = null;
  for (const [key, row] of rows) {
    let line = held.get(key);
    held.delete(key);
    if (!line) {
      line = make("tr", { "data-key": key });
      columns.forEach((column, at) => line.append(make(at ? "td" : "th", { scope: at ? null : "row", class: column.number ? "number" : column.class })));
    }
    columns.forEach((column, at) => put(line.children[at], "shown", column.show(row)));
    const next = before ? before.nextSibling : body.firstChild;
    if (next !== line) body.insertBefore(line, next);
    before = line;
  }
  for (const line of held.values()) line.remove();
  if (!rows.length) body.append(make("tr", { "data-key": "\u0000nothing" }, make("td", { class: "empty", colspan: columns.length }, nothing)));
}

function tiles(host, pairs) {
  for (const [title, value, isLong] of pairs) {
    let tile = [...host.children].find((each) => each.dataset.title === title);
    if (!tile) {
      tile = make("div", { "data-title": title }, make("dt", {}, title), make("dd", { class: isLong ? "long" : null }));
      host.append(tile);
    }
    put(tile.lastChild, "shown", value);
  }
}

function some(section) { return Object.entries(picture[section] || {}); }
function only(section) { const rows = some(section); return rows.length ? rows[0][1] : null; }
function by(field, isDown = false) {
  return ([, a], [, b]) => { const d = a[field] < b[field] ? -1 : a[field] > b[field] ? 1 : 0; return isDown ? -d : d; };
}
function part(main, name, element, attributes = {}) {
  let found = main.querySelector(`[data-part="${name}"]`);
  if (!found) { found = make(element, { "data-part": name, ...attributes }); main.append(found); }
  return found;
}
function title(main, name, text) { put(part(main, `title-${name}`, name === "page" ? "h1" : "h2"), "shown", text); }

// --- the line of a log -----------------------------------------------------------------------------

function lineWords(row) {
  if (!row.line.length) return "no ledgers";
  return `${plural(row.ledgers, "ledger")}, offsets ${count(row.first_offset)} to ${row.next_offset === null ? "unknown" : count(row.next_offset)}`
    + (row.line.some((each) => each.is_fenced) ? ", one is being recovered" : "");
}

function line(row, cursors = []) {
  const known = row.line.filter((each) => each.first_offset !== null);
  const start = known.length ? known[0].first_offset - known[0].lost_before : 0;
  const end = Math.max(start + 1, row.next_offset || 0, ...known.map((each) => each.end_offset || 0));
  const width = 1000, room = row.line.length * 4, scale = (width - room) / (end - start);
  const svg = draw("svg", { class: "line", viewBox: `0 0 ${width} 10`, preserveAspectRatio: "none", role: "img", "aria-label": lineWords(row) });
  const edges = [];
  let at = 0;
  row.line.forEach((each, index) => {
    if (each.lost_before) {
      const lost = each.lost_before * scale;
      svg.append(draw("rect", { class: "lost", x: at, y: 4, width: Math.max(1, lost), height: 2 }, draw("title", {}, `lost: ${plural(each.lost_before, "record")}`)));
      at += lost;
    }
    const records = each.first_offset === null || each.end_offset === null ? 0 : each.end_offset - each.first_offset;
    const long = 4 + records * scale;
    const kind = each.is_fenced ? " fenced" : each.is_open ? " open" : index % 2 ? " other" : "";
    const what = each.ledgers > 1 ? `${count(each.ledgers)} ledgers from ${each.ledger}` : `ledger ${each.ledger}`;
    const words = `${what}, epoch ${each.epoch}, ${each.first_offset === null ? "its place is not known yet" : `from offset ${count(each.first_offset)}, ${plural(records, "record")}`}`
      + (each.is_fenced ? ", in recovery" : each.is_open ? ", open" : "");
    svg.append(draw("rect", { class: `part${kind}`, x: at, y: 0, width: Math.max(1.5, long - 1), height: 10 }, draw("title", {}, words)));
    edges.push([each.first_offset, at, each.end_offset, at + long]);
    at += long;
  });
  for (const cursor of cursors) {
    const edge = edges.find(([from, , to]) => from !== null && cursor.offset >= from && (to === null || cursor.offset <= to));
    if (!edge) continue;
    const [from, x, to, stop] = edge;
    const where = to > from ? x + ((cursor.offset - from) / (to - from)) * (stop - x) : x;
    svg.append(draw("line", { class: "cursor", x1: where, x2: where, y1: 0, y2: 10 }, draw("title", {}, `cursor ${cursor.name}`)));
  }
  return svg;
}

// --- pages -----------------------------------------------------------------------------------------

const PAGES = {
  cluster(main) {
    title(main, "page", "Cluster");
    const bookies = some("bookies"), repair = only("repair");
    const writable = bookies.filter(([, row]) => row.state === "writable").length;
    tiles(part(main, "tiles", "dl", { class: "tiles" }), [
      ["Writable bookies", `${writable} of ${bookies.length}`],
      ["Entries a second", count(sum(bookies, "entries_per_s"))],
      ["Bytes a second", bytes(sum(bookies, "bytes_per_s"))],
      ["Waiting for repair", repair ? count(repair.waiting) : "–"],
      ["Repair workers", repair ? `${repair.workers}${repair.paused ? ", paused" : ""}` : "–"],
      ["Auditor", repair && repair.auditor ? repair.auditor : "nobody", true],
    ]);
    title(main, "bookies", "Bookies");
    table(part(main, "bookies", "div"), "Bookies", BOOKIE_COLUMNS.filter((each) => !each.isChange || person.may_change), bookies.sort(by("id")), "No bookie ever served this cluster.");
  },
  logs(main) {
    title(main, "page", "Logs");
    const list = only("log_list") || {};
    const tools = part(main, "tools", "form", { class: "tools", action: "/logs", role: "search" });
    if (!tools.children.length) {
      tools.append(make("label", { for: "prefix" }, "Names that begin with"), make("input", { id: "prefix", name: "prefix", value: subject.name }), make("button", {}, "Show"));
    }
    put(part(main, "count", "p", { class: "faint" }), "shown",
      list.logs === null || list.logs === undefined ? "…" : list.matching === list.logs ? plural(list.logs, "log") : `${count(list.matching)} of ${plural(list.logs, "log")}`);
    table(part(main, "logs", "div"), "Logs", LOG_COLUMNS, some("logs").sort(by("name")), "There are no such logs.");
    more(main, list.next, `/logs?prefix=${encodeURIComponent(subject.name)}&after=${encodeURIComponent(list.next)}`);
  },
  log(main) {
    title(main, "page", subject.name);
    const row = only("log");
    if (!row) return;
    const isThere = row.epoch !== undefined && row.epoch !== null;
    put(part(main, "state", "p"), "shown", [JSON.stringify([row.state, row.lead, row.why]), () => state(isThere && row.state !== "damaged" ? row.lead : row.state, row.why)]);
    for (const name of ["tiles", "card", "segments", "cursors", "title-segments", "title-cursors", "title-line", "takeovers", "title-takeovers"]) {
      const found = main.querySelector(`[data-part="${name}"]`);
      if (found) found.hidden = !isThere;
    }
    if (!isThere) return;
    tiles(part(main, "tiles", "dl", { class: "tiles" }), [
      ["Epoch", count(row.epoch)],
      ["Leader", row.leader ? `${row.leader}${row.is_leader_there ? "" : " (gone)"}` : row.lead === "led" ? "a process without an election" : "nobody", true],
      ["Readable from", count(row.first_offset)],
      ["Next offset", count(row.next_offset)],
      ["Records a second", count(row.records_per_s)],
      ["Bytes in closed ledgers", bytes(row.bytes)],
      ["Ledgers", count(row.ledgers)],
      ["Replication", row.replication, true],
      ...(row.lost ? [["Lost records", count(row.lost)]] : []),
    ]);
    const takeovers = some("takeovers").sort((a, b) => Number(b[0]) - Number(a[0]));
    title(main, "takeovers", "Takeovers seen from here");
    put(part(main, "takeovers", "div"), "shown", [JSON.stringify(takeovers), () => takeoversOf(takeovers)]);
    title(main, "line", "Its ledgers on a line");
    const cursors = some("cursors").sort(by("name"));
    put(part(main, "card", "div", { class: "card" }), "shown", [JSON.stringify([row.line, row.next_offset, cursors]), () => {
      const box = document.createDocumentFragment();
      box.append(line(row, cursors.map(([, each]) => each)), make("p", { class: "scale" }, make("span", {}, count(row.first_offset)), make("span", {}, count(row.next_offset))));
      const legend = [["plain", "closed"], ["open", "open"], ["fenced", "in recovery"], ["lost", "lost records"]];
      box.append(make("ul", { class: "legend" }, ...legend.map(([kind, text]) => make("li", { class: kind }, make("i", { "aria-hidden": "true" }), text)), make("li", {}, "| cursor")));
      return box;
    }]);
    title(main, "cursors", "Cursors");
    table(part(main, "cursors", "div"), "Cursors", CURSOR_COLUMNS, cursors, "It has no cursors.");
    title(main, "segments", "Ledgers, the newest first");
    const segments = some("segments").sort((a, b) => b[1].epoch - a[1].epoch || (b[1].first_offset ?? Infinity) - (a[1].first_offset ?? Infinity) || b[1].ledger - a[1].ledger);
    table(part(main, "segments", "div"), "Ledgers of the log", SEGMENT_COLUMNS, segments, "It has no ledgers.");
    const skipped = Number(subject.number || 0) + segments.length;
    more(main, skipped < row.ledgers ? skipped : null, `${place.pathname}?skip=${skipped}`);
  },
  ledgers(main) {
    title(main, "page", "Ledgers");
    const tools = part(main, "tools", "form", { class: "tools", role: "search" });
    if (!tools.children.length) {
      tools.append(make("label", { for: "number" }, "Ledger"), make("input", { id: "number", inputmode: "numeric", pattern: "[0-9]+", required: "" }), make("button", {}, "Show"));
      tools.addEventListener("submit", (event) => { event.preventDefault(); location.href = `/ledger/${tools.querySelector("input").value}`; });
    }
    table(part(main, "ledgers", "div"), "Ledgers, the newest first", LEDGER_COLUMNS, some("ledgers").sort(by("ledger", true)), "There are no ledgers.");
    const list = only("ledger_list") || {};
    more(main, list.next, `/ledgers?below=${list.next}`);
  },
  ledger(main) {
    title(main, "page", `Ledger ${subject.number}`);
    const row = only("ledger");
    if (!row) return;
    put(part(main, "state", "p"), "shown", [JSON.stringify([row.state, row.why]), () => (row.state ? state(row.state) : make("span", { class: row.why ? "state bad" : "state faint" }, row.why ? `✕ ${row.why}` : "…"))]);
    for (const name of ["tiles", "fragments", "title-fragments"]) {
      const found = main.querySelector(`[data-part="${name}"]`);
      if (found) found.hidden = !row.state;
    }
    if (!row.state) return;
    tiles(part(main, "tiles", "dl", { class: "tiles" }), [
      ["Log", [String(row.log), () => (row.log ? logLink(row.log) : document.createTextNode("none"))], true],
      ["Last entry", row.last_entry === null ? "not known yet" : row.last_entry < 0 ? "empty" : count(row.last_entry), row.last_entry === null],
      ["Replication", row.replication, true],
      ["Copies in reach, at least", `${row.copies} of ${row.copies_wanted}`],
      ["Created", moment(row.created_ms), true],
    ]);
    title(main, "fragments", "Fragments");
    table(part(main, "fragments", "div"), "Fragments", FRAGMENT_COLUMNS, some("fragments").sort(by("first_entry")), "It has no fragments.");
  },
  repair(main) {
    title(main, "page", "Repair");
    const row = only("repair");
    if (!row) return;
    const tools = part(main, "tools", "div", { class: "tools" });
    put(tools, "shown", [JSON.stringify([row.paused, person.may_change]), () => {
      const box = document.createDocumentFragment();
      box.append(make("span", { class: row.paused ? "state note" : "state good" }, row.paused ? "▲ paused" : "● not paused"));
      if (person.may_change) box.append(changeButton(row.paused ? "Resume repair" : "Pause repair", row.paused ? "resume" : "pause", "", row.paused ? "Workers copy again." : "Workers copy nothing until it is resumed."));
      return box;
    }]);
    tiles(part(main, "tiles", "dl", { class: "tiles" }), [
      ["Ledgers that wait", count(row.waiting)],
      ["At work", count(row.at_work)],
      ["Copied a second", bytes(row.bytes_per_s)],
      ["Auditor", row.auditor || "nobody", true],
      ["Absent bookies", row.absent.length ? row.absent.join(" ") : "none", true],
      ["Being emptied", row.draining.length ? row.draining.join(" ") : "none", true],
      ["Last look at all metadata", row.metadata_ms ? `${moment(row.metadata_ms)}: ${count(row.affected)} of ${plural(row.ledgers, "ledger")} affected` : "never", true],
      ["Entries checked", moment(row.entries_ms), true],
    ]);
    put(part(main, "damaged", "p", { class: "bad" }), "shown", row.damaged.length ? `Damaged: ${row.damaged.join("; ")}` : "");
    title(main, "curve", "Ledgers that wait, since this page was opened");
    put(part(main, "curve", "div", { class: "card" }), "shown", [JSON.stringify(row.history), () => curve(row.history)]);
    title(main, "tasks", "Tasks");
    table(part(main, "tasks", "div"), "Tasks", TASK_COLUMNS, some("tasks").sort(by("ledger")), "Nothing waits.");
    if (row.waiting > some("tasks").length) put(part(main, "others", "p", { class: "faint" }), "shown", `and ${plural(row.waiting - some("tasks").length, "other ledger")}`);
    else put(part(main, "others", "p", { class: "faint" }), "shown", "");
    title(main, "workers", "Workers");
    table(part(main, "workers", "div"), "Workers", WORKER_COLUMNS, some("workers").sort(by("name")), "No worker runs: start 'ledgerlog repair run', or bookies with --auto-recovery.");
  },
};

function sum(rows, field) {
  const known = rows.map(([, row]) => row[field]).filter((value) => value !== null && value !== undefined);
  return known.length ? Math.round(known.reduce((a, b) => a + b, 0)) : null;
}

function more(main, next, path) {
  const isThere = next !== null && next !== undefined;
  put(part(main, "more", "p"), "shown", [isThere ? path : "", () => (isThere ? link(path, "More") : document.createTextNode(""))]);
}

function disk(row) {
  if (row.disk_bytes === null || row.disk_used_bytes === null) return "–";
  const share = row.disk_used_bytes / row.disk_bytes;
  const words = `${Math.round(share * 100)} % of ${bytes(row.disk_bytes)}${row.is_disk_full ? ", full" : ""}`;
  return [words, () => {
    const box = document.createDocumentFragment();
    box.append(make("meter", { min: 0, max: 1, low: 0.85, high: 0.95, optimum: 0, value: share.toFixed(3), "aria-hidden": "true" }), words);
    return box;
  }];
}

const BOOKIE_COLUMNS = [
  { title: "Bookie", show: (row) => row.id },
  { title: "State", show: (row) => {
    const notes = [row.why, row.is_draining ? "is being emptied" : null, row.is_synced ? null : "unsynced", row.ledgers_in_limbo ? `${plural(row.ledgers_in_limbo, "ledger")} in limbo` : null,
      row.rotten_runs ? `${plural(row.rotten_runs, "damaged run")}` : null, row.is_slow ? "answers slowly" : null].filter(Boolean).join("; ");
    return [`${row.state} ${notes}`, () => state(row.state, notes || null)];
  } },
  { title: "Address", show: (row) => (row.address || "–") + (row.rack ? ` (${row.rack})` : "") },
  { title: "Disk", show: disk },
  { title: "Entries/s", number: true, show: (row) => count(row.entries_per_s) },
  { title: "Bytes/s", number: true, show: (row) => bytes(row.bytes_per_s) },
  { title: "Reads/s", number: true, show: (row) => count(row.reads_per_s) },
  { title: "Sync, mean", number: true, show: (row) => milliseconds(row.sync_ms) },
  { title: "Answers in", number: true, show: (row) => milliseconds(row.answer_ms) },
  { title: "Clients", number: true, show: (row) => count(row.connections) },
  { title: "Change", isChange: true, show: (row) => [String(row.is_draining), () => (row.is_draining
    ? changeButton("Keep", "keep", row.id, "It takes new ledgers again.")
    : changeButton("Empty", "empty", row.id, "All its entries are copied to others, and it gets no new ones."))] },
];
const LOG_COLUMNS = [
  { title: "Log", show: (row) => [row.name, () => logLink(row.name)] },
  { title: "State", show: (row) => [`${row.state} ${row.lead} ${row.why}`, () => state(row.state === "there" ? row.lead : row.state, row.why)] },
  { title: "Leader", show: (row) => (row.leader ? `${row.leader}${row.is_leader_there ? "" : " (gone)"}` : "–") },
  { title: "Epoch", number: true, show: (row) => count(row.epoch) },
  { title: "Ledgers", number: true, show: (row) => count(row.ledgers) },
  { title: "From", number: true, show: (row) => count(row.first_offset) },
  { title: "Next offset", number: true, show: (row) => count(row.next_offset) },
  { title: "Records/s", number: true, show: (row) => count(row.records_per_s) },
  { title: "Ledgers on a line", class: "line", show: (row) => [JSON.stringify([row.line, row.next_offset]), () => line(row)] },
];
const CURSOR_COLUMNS = [
  { title: "Cursor", show: (row) => row.name },
  { title: "Offset", number: true, show: (row) => count(row.offset) },
  { title: "Lag", number: true, show: (row) => count(row.lag) },
  { title: "Pins", show: (row) => (row.pins ? "yes: keeps the records behind it" : "no") },
  { title: "Moved", show: (row) => moment(row.updated_ms) },
];
const SEGMENT_COLUMNS = [
  { title: "Ledger", show: (row) => [String(row.ledger), () => ledgerLink(row.ledger)] },
  { title: "State", show: (row) => [row.state, () => state(row.state)] },
  { title: "Epoch", number: true, show: (row) => count(row.epoch) },
  { title: "First offset", number: true, show: (row) => count(row.first_offset) },
  { title: "Records", number: true, show: (row) => count(row.records) },
  { title: "Bytes", number: true, show: (row) => bytes(row.bytes) },
  { title: "Last record", show: (row) => (row.last_ms ? moment(row.last_ms) : "–") },
  { title: "Bookies", show: (row) => row.bookies.join(" ") || "–" },
];
const LEDGER_COLUMNS = [
  { title: "Ledger", show: (row) => [String(row.ledger), () => ledgerLink(row.ledger)] },
  { title: "State", show: (row) => [`${row.state} ${row.why}`, () => (row.state ? state(row.state) : state("unknown", row.why))] },
  { title: "Log", show: (row) => (row.log ? [row.log, () => logLink(row.log)] : "–") },
  { title: "Last entry", number: true, show: (row) => (row.last_entry < 0 ? "empty" : count(row.last_entry)) },
  { title: "Replication", show: (row) => row.replication || "–" },
  { title: "Copies in reach", show: (row) => copies(row) },
  { title: "Fragments", number: true, show: (row) => count(row.fragments) },
  { title: "Bookies of the last", show: (row) => (row.bookies || []).join(" ") || "–" },
];
const FRAGMENT_COLUMNS = [
  { title: "From entry", number: true, show: (row) => count(row.first_entry) },
  { title: "To entry", number: true, show: (row) => count(row.last_entry) },
  { title: "Copies in reach", show: (row) => copies(row) },
  { title: "Bookies", show: (row) => [JSON.stringify(row.bookies), () => {
    const box = document.createDocumentFragment();
    for (const each of row.bookies) box.append(make("span", { class: `chip ${(STATES[each.state] || STATES.unknown)[0]}` }, `${each.id}${each.state === "writable" ? "" : `: ${each.state}`}`));
    return box;
  }] },
];
const TASK_COLUMNS = [
  { title: "Ledger", show: (row) => [String(row.ledger), () => ledgerLink(row.ledger)] },
  { title: "Bookies", show: (row) => [["lost", row.lost], ["damaged", row.damaged], ["incomplete", row.incomplete], ["in too few racks", row.misplaced]].filter(([, who]) => who.length).map(([what, who]) => `${what}: ${who.join(" ")}`).join("; ") || "any may lack entries" },
  { title: "Worker", show: (row) => row.worker || "–" },
  { title: "What is done, or why it is not", class: "text", show: (row) => row.doing || row.trouble || "waits" },
  { title: "Since", show: (row) => (row.made_ms ? moment(row.made_ms) : "–") },
];
const WORKER_COLUMNS = [
  { title: "Worker", show: (row) => row.name },
  { title: "At work on", class: "text", show: (row) => row.ledgers.join(" ") || "nothing" },
  { title: "Done", number: true, show: (row) => count(row.repaired) },
  { title: "Entries copied", number: true, show: (row) => count(row.entries) },
  { title: "Bytes copied", number: true, show: (row) => bytes(row.bytes) },
  { title: "A second", number: true, show: (row) => bytes(row.bytes_per_s) },
];

function copies(row) {
  if (row.copies === undefined || row.copies === null) return "–";
  const isWhole = row.copies >= row.copies_wanted;
  return [`${row.copies}/${row.copies_wanted}`, () => make("span", { class: isWhole ? "good" : "bad" }, `${isWhole ? "●" : "▲"} ${row.copies} of ${row.copies_wanted}`)];
}

function takeoversOf(rows) {
  const box = document.createDocumentFragment();
  if (!rows.length) box.append(make("p", { class: "faint" }, "None yet. One is drawn here as it happens."));
  for (const [, row] of rows) {
    const isClosed = row.is_closed;
    const steps = [
      ["Fence the last leader", row.fenced.length ? `ledger ${row.fenced.join(", ")} of epoch ${row.epoch_before}` : `epoch ${row.epoch_before}`, row.closed.length || row.is_over ? "done" : "now"],
      ["Find where its records end", row.closed.length ? row.closed.map(([ledger, last]) => `ledger ${ledger} ends ${last < 0 ? "empty" : `at entry ${count(last)}`}`).join(", ") : isClosed ? "done" : "copies what its last entries lack", isClosed ? "done" : row.closed.length || row.fenced.length ? "now" : ""],
      ["Lead on", row.is_over ? (row.ledger === null ? `epoch ${row.epoch}, without a leader` : `epoch ${row.epoch}, in ledger ${row.ledger}`) : "waits", row.is_over ? "done" : isClosed ? "now" : ""],
    ];
    const words = { done: "✓ ", now: "▲ ", "": "○ " };
    box.append(make("p", { class: "faint" }, `${clock(row.began_s)}${row.seconds === null ? "" : `, took ${row.seconds.toFixed(2)} s`}${row.is_over ? "" : ", under way"}`),
      make("ol", { class: "steps" }, ...steps.map(([name, text, kind]) => make("li", { class: kind }, make("strong", {}, words[kind] + name), text))));
  }
  return box;
}

function curve(history) {
  const box = document.createDocumentFragment();
  if (!history.length) return make("p", { class: "faint" }, "…");
  const end = Math.max(Date.now() / 1000, history[history.length - 1][0]), start = history[0][0];
  const most = Math.max(...history.map(([, number]) => number)), top = Math.max(1, most);
  const x = (at) => (end > start ? ((at - start) / (end - start)) * 1000 : 0), y = (number) => 98 - (number / top) * 94;
  let path = `M0 ${y(history[0][1])}`;
  for (const [at, number] of history.slice(1)) path += ` H${x(at)} V${y(number)}`;
  path += " H1000";
  const last = history[history.length - 1][1];
  box.append(draw("svg", { class: "curve", viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": `${plural(last, "ledger")} now, ${count(most)} at most since ${clock(start)}` }, draw("path", { d: path })),
    make("p", { class: "scale" }, make("span", {}, `${clock(start)}: ${count(history[0][1])}`), make("span", {}, `most: ${count(most)}`), make("span", {}, `now: ${count(last)}`)));
  return box;
}

// --- changes ---------------------------------------------------------------------------------------

function changeButton(text, what, bookie, means) {
  const name = bookie ? `${text} ${bookie}` : text;
  const button = make("button", { type: "button", class: what === "empty" ? "grave" : null, "aria-label": name }, text);
  button.addEventListener("click", () => {
    const dialog = document.getElementById("sure-dialog");
    document.getElementById("sure-title").textContent = `${name}?`;
    document.getElementById("sure-text").textContent = means;
    dialog.querySelector('[value="yes"]').textContent = name;
    dialog.onclose = async () => {
      if (dialog.returnValue !== "yes") return;
      const answer = await send("/change", { what, bookie });
      say(answer.error || answer.done, Boolean(answer.error));
    };
    dialog.returnValue = "no";
    dialog.showModal();
  });
  return button;
}

async function send(path, fields) {
  const headers = { "Content-Type": "application/json" };
  if (person.mark) headers["X-Console-Mark"] = person.mark;
  try {
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(fields), credentials: "same-origin" });
    return await answer.json();
  } catch (failure) {
    return { error: `the console does not answer: ${failure.message}` };
  }
}

let said = null;
function say(text, isBad) {
  said = text ? { text, isBad } : null;
  drawTroubles();
  if (said) setTimeout(() => { if (said && said.text === text) { said = null; drawTroubles(); } }, 8000);
}

// --- the frame -------------------------------------------------------------------------------------

function drawTroubles() {
  const lines = some("troubles").map(([, row]) => [`${row.what}: ${row.why}`, true]);
  if (said) lines.unshift([said.text, said.isBad]);
  put(document.getElementById("troubles"), "shown", [JSON.stringify(lines), () => {
    const box = document.createDocumentFragment();
    for (const [text, isBad] of lines) box.append(make("p", { class: isBad ? "trouble" : null }, text));
    return box;
  }]);
}

function drawHappenings() {
  const list = document.querySelector("#happenings ol");
  const rows = some("happenings").sort((a, b) => Number(b[0]) - Number(a[0]));
  document.getElementById("happenings").hidden = !rows.length;
  const held = new Map([...list.children].map((each) => [each.dataset.key, each]));
  for (const [key, row] of [...rows].reverse()) {
    if (held.delete(key)) continue;
    list.prepend(make("li", { "data-key": key }, make("time", {}, clock(row.at_s)),
      make("span", { class: row.tone }, { good: "● ", bad: "✕ ", note: "▲ " }[row.tone] || ""), `${row.about} ${row.text}`));
  }
  for (const each of held.values()) each.remove();
}

function show() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    drawTroubles();
    PAGES[subject.kind](document.getElementById("main"));
    drawHappenings();
    document.body.dataset.drawn = "yes";
  });
}

function take(told) {
  for (const [section, keys] of Object.entries(told.gone)) for (const key of keys) if (picture[section]) delete picture[section][key];
  for (const [section, rows] of Object.entries(told.set)) {
    const held = (picture[section] ||= Object.create(null)); // A log may be called "__proto__".
    for (const [key, fields] of Object.entries(rows)) held[key] = { ...held[key], ...fields };
  }
  show();
}

function contact(text, isLost) {
  const place = document.getElementById("contact");
  place.classList.toggle("lost", isLost);
  if (place.textContent !== text) place.textContent = text;
}

function watch() {
  if (source) source.close();
  const query = new URLSearchParams(Object.entries(subject).filter(([, value]) => value !== ""));
  source = new EventSource(`/watch?${query}`);
  source.addEventListener("begin", () => { picture = {}; contact("● live", false); });
  source.addEventListener("refused", (event) => { source.close(); contact(JSON.parse(event.data), true); begin(); });
  source.addEventListener("message", (event) => take(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    contact("✕ the console does not answer; what you see is old", true);
    if (source.readyState === EventSource.CLOSED) explain(`/watch?${query}`);
  });
}

async function explain(path) {
  // A browser does not tell why it could not open a stream. So ask once more, for the answer's status and words.
  const asking = new AbortController();
  try {
    const answer = await fetch(path, { credentials: "same-origin", signal: asking.signal });
    if (!answer.ok && answer.status !== 401 && answer.status !== 403) { // These two: log in.
      const why = (await answer.json()).error;
      contact("✕ not shown", true);
      document.getElementById("main").replaceChildren(make("h1", {}, "This page cannot be shown"), make("p", {}, why));
      document.body.dataset.drawn = "yes";
      if (answer.status === 400) return; // The address is wrong, and stays so.
    }
  } catch {
    // It does not answer, and the page says so already.
  } finally {
    asking.abort();
  }
  setTimeout(begin, 2000);
}

async function begin() {
  let session;
  try {
    session = await (await fetch("/session", { credentials: "same-origin" })).json();
  } catch (failure) {
    contact("✕ the console does not answer; what you see is old", true);
    setTimeout(begin, 2000);
    return;
  }
  person = session;
  document.title = `${subject.kind === "log" ? subject.name : subject.kind === "ledger" ? `ledger ${subject.number}` : subject.kind} – ledgerlog`;
  document.getElementById("person").textContent = session.principal ? `${session.principal}${session.may_change ? "" : ", may look"}` : "";
  document.getElementById("log-in").hidden = Boolean(session.principal);
  document.getElementById("log-out").hidden = !session.principal;
  document.getElementById("main").replaceChildren();
  if (session.refused) {
    contact("✕ log in to look", true);
    document.getElementById("main").replaceChildren(make("h1", {}, "Log in to look"), make("p", {}, session.principal ? session.refused : "Who looks here has to show a token. 'ledgerlog access token' makes one."));
    document.body.dataset.drawn = "yes";
    return;
  }
  watch();
}

function prepare() {
  const page = { log: "logs", ledger: "ledgers" }[parts[0]] || parts[0];
  for (const each of document.querySelectorAll("nav a")) if (each.getAttribute("href") === `/${page}`) each.setAttribute("aria-current", "page");
  const dialog = document.getElementById("log-in-dialog"), error = document.getElementById("log-in-error"), token = document.getElementById("token");
  document.getElementById("log-in").addEventListener("click", () => { error.textContent = ""; token.value = ""; dialog.showModal(); });
  document.getElementById("log-in-cancel").addEventListener("click", () => dialog.close());
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const answer = await send("/log-in", { token: token.value });
    token.value = "";
    if (answer.error) { error.textContent = answer.error; token.focus(); return; }
    dialog.close();
    begin();
  });
  document.getElementById("log-out").addEventListener("click", async () => { await send("/log-out", {}); if (source) source.close(); picture = {}; begin(); });
  begin();
}

prepare();

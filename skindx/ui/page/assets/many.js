// Many photos: the queue is here, in the browser. The server answers one photo after the other and
// keeps nothing; the answers are in this page until it is left.
const card = element.querySelector(".sx-many");
const at = (selector) => card.querySelector(selector);
const most = Number(card.dataset.most), maxBytes = Number(card.dataset.maxBytes);
const order = ["urgent", "soon", "unknown", "routine", "refused"];
const kindName = (kind) => say(`js_many_${kind}`);
const TRIES = 4, THUMBNAIL = 112;
const photo = /\.(jpe?g|jpe|jfif|png|webp|hei[cf]|avif|tiff?|bmp|gif|dcm|dicom)$/i;
let queue = [], next = 0, done = 0, running = 0, stopped = true, began = 0, before = 0, lines = [], counts = {}, saved = true;

const make = (tag, className, text = "") => Object.assign(document.createElement(tag), { className, textContent: text });
const problem = (sentence) => { at(".sx-many-problem").textContent = sentence; };
const wait = (seconds) => new Promise((after) => setTimeout(after, 1000 * seconds));
const nameOf = (file) => (file.webkitRelativePath || file.name).split("/").slice(file.webkitRelativePath ? 1 : 0).join("/");
const byName = (a, b) => (nameOf(a) < nameOf(b) ? -1 : 1);

function choose(files) {
  if (running) return;
  const seen = [...files].filter((file) => !nameOf(file).split("/").some((part) => part.startsWith(".")));
  const photos = seen.filter((file) => photo.test(file.name) || file.type.startsWith("image/"));
  photos.sort(byName);
  const left = files.length - photos.length;
  problem("");
  if (!photos.length || photos.length > most) {
    problem(photos.length ? say("js_many_most", { count: photos.length, most }) : say("js_many_none"));
    return;
  }
  if (!saved && !confirm(sayAll("js_many_clear", "js_many_clear_ask"))) return;
  queue = photos;
  saved = true;
  next = done = before = 0;
  lines = [];
  counts = {};
  at(".sx-many-rows").replaceChildren();
  at(".sx-many-work").hidden = at(".sx-many-after").hidden = at(".sx-many-notice").hidden = true;
  at(".sx-many-chosen").textContent = [say("js_many_chosen", { n: photos.length }), ...(left ? [say("js_many_left", { n: left })] : []), say("js_many_privacy")].join(" ");
  buttons();
}

function buttons() {
  const busy = running > 0 && !stopped;
  at(".sx-many-go").hidden = busy || next >= queue.length;
  at(".sx-many-go").textContent = say(next ? "js_many_on" : "js_many_go");
  at(".sx-many-stop").hidden = !busy;
  for (const input of card.querySelectorAll("input[type=file]")) input.disabled = running > 0;
}

function step() {
  at("progress").max = queue.length;
  at("progress").value = done;
  const seconds = (performance.now() - began) / 1000 / (done - before) * (queue.length - done);
  const left = () => seconds < 90 ? say("js_many_seconds", { count: Math.max(1, Math.round(seconds)) }) : say("js_many_minutes", { count: Math.round(seconds / 60) });
  const rest = done === queue.length ? [] : stopped ? [say("js_many_stopped")] : done > before ? [left()] : [];
  at(".sx-many-step").textContent = [say("js_many_done", { done, n: queue.length }), ...rest].join(" ");
}

// One answer, as {shown, csv}. Where the server is busy, or lost for a moment, it is asked again.
async function row(file, modality = "") {
  for (let tried = 1; ; tried += 1) {
    const form = new FormData();
    form.append("file", nameOf(file).slice(-300));
    if (modality) form.append("modality", modality);
    // Of a larger one the server needs no more to refuse it.
    form.append("photo", file.slice(0, maxBytes + 1), "photo");
    let answer;
    try { answer = await fetch("answer-row", { method: "POST", body: form }); } catch { /* no connection */ }
    if (answer?.ok) {
      try { return await answer.json(); } catch { throw new Error(say("js_many_unexpected")); }
    }
    const busy = answer?.status === 429 || answer?.status === 503;
    if ((stopped && !modality) || answer?.status === 401 || (!busy && tried >= TRIES)) {
      let sentence = answer ? say("js_many_answered", { status: String(answer.status) }) : say("js_many_lost");
      try { sentence = (await answer.json()).error || sentence; } catch { /* of something in between */ }
      throw new Error(`${sentence} ${say("js_many_stays")}`);
    }
    await wait(Math.min(Number(answer?.headers.get("retry-after")) || 2 ** tried, 60));
  }
}

async function thumbnail(file) {
  try {
    const image = await createImageBitmap(file);
    const scale = THUMBNAIL / Math.min(image.width, image.height), small = make("canvas", "");
    small.width = small.height = THUMBNAIL;
    small.getContext("2d").drawImage(image, (THUMBNAIL - scale * image.width) / 2, (THUMBNAIL - scale * image.height) / 2, scale * image.width, scale * image.height);
    image.close();
    return small;
  } catch { return make("span", "sx-many-blank", say("js_many_no_preview")); }
}

// With `old` in the place of the row that says why the photo was refused.
async function show(file, { shown, csv }, old = null) {
  if (old) {
    lines = lines.filter(([of]) => of !== file);
    counts[old.dataset.kind] -= 1;
    at(".sx-many-which").value = "";
    old.remove();
  }
  lines.push([file, csv]);
  saved = false;
  const item = make("li", "sx-many-row");
  const text = make("div", "");
  const head = make("p", "");
  head.append(make("span", `sx-chip sx-${shown.kind === "refused" ? "unknown" : shown.kind}`, `${shown.kind === "urgent" ? "▲ " : ""}${kindName(shown.kind)}`), make("b", "", shown.first));
  text.append(head);
  const risks = shown.risks.map(([risk, name]) => ["sx-hint", `${risk} ${name}`]);
  for (const [className, words] of [["sx-warning", shown.warning], ["", shown.text], ...risks, ["sx-hint", shown.advice], ["sx-hint", shown.remarks], ["sx-hint sx-many-name", nameOf(file)]]) if (words) text.append(make("p", className, words));
  item.append(old?.firstElementChild ?? await thumbnail(file), text);
  if (shown.to_say?.unless) text.append(...saying(file, item, shown.to_say));
  item.dataset.kind = shown.kind;
  item.rank = 1000 * order.indexOf(shown.kind) - 100 * shown.urgent_risk;
  const rows = at(".sx-many-rows");
  rows.insertBefore(item, [...rows.children].find((other) => other.rank > item.rank) ?? null);
  at(".sx-many-after").hidden = at(".sx-many-notice").hidden = false;
  counts[shown.kind] = (counts[shown.kind] ?? 0) + 1;
  kinds();
  if (old) { item.tabIndex = -1; item.focus(); }
}

// A person may say how a photo was taken that the check of modality alone refused.
function saying(file, item, { button, hazard, unless }) {
  const means = make("p", "sx-warning", hazard), does = make("button", "sx-button sx-say", button);
  means.id = `sx-many-say-${lines.length}`;
  does.type = "button";
  does.setAttribute("aria-describedby", means.id);
  does.onclick = async () => {
    does.disabled = true;
    problem("");
    try {
      const answered = await row(file, unless);
      if (item.isConnected) await show(file, answered, item);
    } catch (error) {
      does.disabled = false;
      problem(error.message);
    }
  };
  return [means, does];
}

function kinds() {
  const which = at(".sx-many-which"), chosen = which.value;
  which.replaceChildren(new Option(say("js_many_all", { n: lines.length }), ""), ...order.filter((kind) => counts[kind]).map((kind) => new Option(say("js_many_kind", { n: counts[kind], name: kindName(kind) }), kind)));
  which.value = chosen;
  for (const item of at(".sx-many-rows").children) item.hidden = Boolean(chosen) && item.dataset.kind !== chosen;
}

async function work() {
  running += 1;
  while (!stopped && next < queue.length) {
    const file = queue[next];
    next += 1;
    try {
      await show(file, await row(file));
      done += 1;
    } catch (error) {
      stopped = true;
      queue.push(...queue.splice(queue.indexOf(file), 1)); // it comes again, at the end
      next -= 1;
      problem(error.message);
    }
    step();
  }
  running -= 1;
  if (!running) buttons();
}

function start() {
  if (running) return;
  stopped = false;
  problem("");
  began = performance.now();
  before = done;
  at(".sx-many-work").hidden = false;
  for (let n = 0; n < Number(card.dataset.atATime); n += 1) work();
  step();
  buttons();
}

function save() {
  const sorted = [...lines].sort((a, b) => byName(a[0], b[0]));
  const url = URL.createObjectURL(new Blob([`${card.dataset.columns}\n`, ...sorted.map(([, csv]) => csv)], { type: "text/csv" }));
  Object.assign(document.createElement("a"), { href: url, download: "answers.csv" }).click();
  saved = true;
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

if (!("webkitdirectory" in HTMLInputElement.prototype) || matchMedia("(hover: none)").matches) at(".sx-many-folder").hidden = true;
card.addEventListener("change", (event) => {
  if (event.target.type === "file") { choose([...event.target.files]); event.target.value = ""; }
  else kinds();
});
at(".sx-many-go").onclick = start;
at(".sx-many-stop").onclick = () => { stopped = true; step(); buttons(); };
at(".sx-many-save").onclick = save;
window.addEventListener("beforeunload", (event) => { if (running || !saved) event.preventDefault(); });

// The scan of a wide photo: the form's photos go to /v1/scan, and the job is asked until it is done.
const route = "v1/scan", headers = { "x-skindx-page": "1" };
let job = null; // {url, id, asking}
const at = (selector) => element.querySelector(selector);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function asked(url, options = {}) {
  let answer;
  try { answer = await fetch(url, { headers, ...options }); } catch { throw new Error(say("js_unreached")); }
  if (answer.ok) return answer;
  let sentence = say("js_status", { status: String(answer.status) });
  try { sentence = (await answer.json()).error || sentence; } catch { /* of something in between */ }
  throw new Error(sentence);
}

function step({ status, stage, scans_before, tiles_done, tiles_known }) {
  const bar = at("progress");
  if (stage === "searching" && tiles_known) { bar.max = tiles_known; bar.value = tiles_done; } else bar.removeAttribute("value");
  const waiting = scans_before ? say("js_scan_before", { n: scans_before }) : say("js_scan_waiting");
  const stages = { opening: "js_scan_opening", searching: "js_scan_searching", diagnosing: "js_scan_diagnosing", writing: "js_scan_writing" };
  const said = status === "queued" ? waiting : say(stages[stage] ?? "js_scan_begins");
  const tiles = stage === "searching" && tiles_known ? ` ${say("js_scan_tiles", { done: tiles_done, tiles: tiles_known })}` : "";
  at(".sx-scan-step").textContent = `${said}${tiles}`;
  if (at(".sx-live").textContent !== said) at(".sx-live").textContent = said;
}

function work(on) {
  at(".sx-scan-work").hidden = !on;
  at(".sx-scan-form").hidden = on || job !== null;
  at(".sx-scan-privacy").hidden = at(".sx-scan-form").hidden;
  if (on) at(".sx-scan-ruler").hidden = true;
  if (!on) at(".sx-live").textContent = "";
}

function failed(sentence) {
  job = null;
  work(false);
  at(".sx-refusal").textContent = sentence;
}

// The case's wide photos: [index, file] of each that is still in the form.
function photos() {
  const wanted = { files: [] };
  document.dispatchEvent(new CustomEvent("skindx-photos", { detail: wanted }));
  return at(".sx-scan").dataset.photos.split(",").map((index) => [Number(index), wanted.files[index]]).filter(([, file]) => file);
}

let scales = {}; // index -> what a person confirmed on that photo
let search = null; // of rulers: the one at work

// Each photo's ruler is shown with its ticks drawn; none is used before a person says that they fit.
async function rulers() {
  const mine = search = {}, all = photos(), said = [];
  scales = {};
  at(".sx-refusal").textContent = all.length ? "" : say("js_photos_gone");
  for (const [index, file] of all) {
    const which = all.length > 1 ? `${say("js_photo", { number: index + 1 })}: ` : "";
    at(".sx-live").textContent = which ? say("js_ruler_search_photo", { number: index + 1 }) : say("js_ruler_search");
    const body = new FormData();
    body.append("photo", file, "photo");
    try {
      const found = await (await asked(`${route}/ruler`, { method: "POST", body })).json();
      if (search !== mine || job) return;
      const fits = await confirmed(which, found);
      if (search !== mine || job) return;
      if (fits) scales[index] = found.mm_per_pixel;
      said.push(`${which}${fits ? say("js_ruler_scale", { size: decimal(found.mm_per_pixel, { maximumSignificantDigits: 4 }) }) : say("js_ruler_unused")}`);
    } catch (error) {
      if (search !== mine || job) return;
      said.push(error.message);
    }
  }
  search = null;
  if (all.length === 1 && all[0][0] in scales) at("[name=scale_mm_per_pixel]").value = Number(scales[all[0][0]].toPrecision(6));
  at(".sx-live").textContent = said.join(" ");
  at(".sx-scan-form .sx-primary").focus();
}

function confirmed(which, { sentence, image }) {
  const box = at(".sx-scan-ruler");
  box.querySelector(".sx-ruler-said").textContent = `${which}${sentence}`;
  box.querySelector("img").src = image;
  box.hidden = false;
  at(".sx-live").textContent = "";
  box.focus();
  return new Promise((done) => {
    const end = (fits) => () => { box.hidden = true; box.querySelector("img").removeAttribute("src"); done(fits); };
    box.querySelector("[data-ruler-yes]").onclick = end(true);
    box.querySelector("[data-ruler-no]").onclick = end(false);
  });
}

async function scan(form) {
  if (job) return;
  const mine = { url: "", id: "", asking: new AbortController() };
  search = null;
  const body = new FormData(), all = photos();
  for (const [, file] of all) body.append("photo", file, "photo");
  const scale = form.elements.scale_mm_per_pixel.value.trim().replace(",", ".");
  if (scale) body.append("scale_mm_per_pixel", scale);
  else if (all.length > 1 && all.some(([index]) => index in scales)) for (const [index] of all) body.append("scale_mm_per_pixel", scales[index] ?? "none");
  at(".sx-refusal").textContent = "";
  if (scale && !(Number(scale) > 0)) { failed(say("js_scan_scale")); return; }
  if (!body.has("photo")) { failed(say("js_photos_gone")); return; }
  job = mine;
  step({ status: "queued", scans_before: 0 });
  work(true);
  at(".sx-scan-work button").focus();
  try {
    const taken = await (await asked(route, { method: "POST", body })).json();
    Object.assign(mine, { url: taken.url, id: taken.id });
    if (job !== mine) { forget(mine); return; }
    for (let now = taken; ; now = await (await asked(mine.url, { signal: mine.asking.signal })).json()) {
      if (job !== mine) return;
      step(now);
      if (now.status === "failed") { failed(now.error); return; }
      if (now.status === "done") { await done(mine, now); return; }
      await pause(1000);
    }
  } catch (error) {
    if (job === mine) failed(error.message);
  }
}

async function done(mine, { expires_at }) {
  const html = await (await asked(`${mine.url}/list`, { signal: mine.asking.signal })).text();
  if (job !== mine) return;
  work(false);
  at(".sx-scan-result").innerHTML = html; // the server's template, which escapes what it holds
  at("[data-scan-page]").href = `${mine.url}/page`;
  at("[data-scan-download]").href = `${mine.url}/page?download`;
  const until = new Date(expires_at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  at(".sx-scan-until").textContent = say("js_scan_until", { time: until });
  at(".sx-scan-after").hidden = false;
  if (at(".sx-scan-keep")) at(".sx-scan-keep").hidden = false;
  at(".sx-scanned").focus();
}

// Nothing asks for a scan that is being deleted.
function forget({ url, asking }) { asking.abort(); if (url) fetch(url, { method: "DELETE", headers, keepalive: true }).catch(() => {}); }

function remove() {
  const mine = job;
  job = null;
  if (mine) forget(mine);
  at(".sx-scan-result").replaceChildren();
  at(".sx-scan-after").hidden = true;
  if (at(".sx-scan-keep")) at(".sx-scan-keep").hidden = true;
  work(false);
  at(".sx-live").textContent = say("js_scan_deleted");
  at(".sx-scan-form button").focus();
}

element.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.target.matches(".sx-scan-form")) scan(event.target);
  else trigger("act", { ...Object.fromEntries(new FormData(event.target)), scan: job?.id ?? "" });
});
element.addEventListener("input", ({ target }) => { if (target.closest(".sx-scan-form")) at(".sx-refusal").textContent = ""; });
element.addEventListener("click", (event) => {
  if (event.target.closest("[data-scan-delete]")) remove();
  else if (event.target.closest("[data-ruler-find]") && !search) rulers();
});
// Another case, or none: what the scan before it found is deleted.
// Its forms are patched in place, so their fields are emptied.
watch("value", () => {
  scales = {};
  search = null;
  if (job) { forget(job); job = null; }
  for (const form of element.querySelectorAll("form")) form.reset();
});

// The form: photos stay in the browser until the button is pressed; nothing is kept in storage.
const form = element.querySelector("form");
const at = (selector) => form.querySelector(selector);
const most = Number(form.dataset.most), maxBytes = Number(form.dataset.maxBytes);
const crop = Number(form.dataset.crop);
const photos = []; // {file, url, refusal, cut}
let retaken = null; // the photo whose place the next one takes
let answered = false; // whether the page shows an answer
let asked = { words: "", photos: [] }; // what the last answer or refusal is about
let refusal = null; // the next step after the last refusal, as the server says it
let holds = ""; // what the form held then
let subject = []; // the photos that the facts and answers were given with

// What the form is doing, and what it does after each event. An event that does not stand here
// came twice, or too late: it changes nothing.
const NEXT = {
  choosing: { send: "sending", clear: "clearing" },
  sending: { sent: "asking", unsent: "choosing", clear: "clearing" },
  asking: { told: "choosing", lost: "choosing", done: "choosing", clear: "clearing" },
  clearing: { cleared: "choosing", lost: "choosing" },
};
let state = "choosing";
let question = 0; // counts up with each question and each clearing: an answer to an older one is none
const unfinished = []; // questions of which the server has not said yet that it is done

function step(event) {
  if (!NEXT[state][event]) return false;
  state = NEXT[state][event];
  work(state === "sending" || state === "asking");
  return true;
}

const refuse = (message) => { at(".sx-refusal-form").textContent = message; };
const size = (bytes) => bytes < 1e6 ? say("js_size_kb", { size: Math.round(bytes / 1e3) }) : say("js_size_mb", { size: decimal(bytes / 1e6, { minimumFractionDigits: 1, maximumFractionDigits: 1 }) });

// Gradio rejects an upload with "HTTP 429: " and the answer's body, which holds our sentence.
function unsent(error) {
  const [, status, body] = /^HTTP (\d{3}): ([^]*)$/.exec(error?.message ?? "") ?? [];
  if (!status) return say("js_photo_unsent");
  try {
    const sentence = JSON.parse(body).error;
    if (sentence && typeof sentence === "string") return sentence;
  } catch { /* the answer of something between this page and the server */ }
  if (status === "404" || status === "405") return say("js_photo_unsent_address");
  return say("js_photo_unsent_status", { status });
}

// No slower than the server allows: it ends such an upload itself, if it still can.
function sent(file) {
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error("HTTP 408: ")), 60_000 + file.size / 8));
  return Promise.race([upload(file), late]).then((taken) => {
    if (typeof taken?.path !== "string") throw new Error("no path");
    return taken;
  });
}

function make(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const cutOf = ({ cut, example }) => example ? "" : cut ?? "";

function show() {
  // What follows from the number of photos stands before any of them is looked into.
  form.classList.toggle("sx-has", photos.length > 0);
  form.classList.toggle("sx-several", photos.length > 1);
  form.classList.toggle("sx-own", photos.some(isOwn));
  form.classList.toggle("sx-full", photos.length >= most);
  name();
  const shared = isShared();
  at(".sx-photos").replaceChildren(...photos.map((photo, index) => {
    const preview = make("img", { src: photo.url, alt: say("js_photo_alt", { number: index + 1, name: photo.file.name }) });
    // A browser that cannot show HEIC still sends it; the answer or refusal brings a preview.
    preview.onerror = () => preview.replaceWith(make("span", { className: "sx-no-preview" }, say("js_preview_none")));
    const frame = make("span", { className: "sx-preview" }, preview);
    const again = make("button", { type: "button", className: "sx-button sx-retake", textContent: say(photo.camera ? "js_photo_again" : "js_photo_another") });
    again.setAttribute("aria-label", say(photo.camera ? "js_photo_again_which" : "js_photo_another_which", { number: index + 1 }));
    again.onclick = () => { retaken = photo; at(photo.camera ? "#sx-camera" : "#sx-file").click(); };
    const seen = make("div", { className: "sx-seen-part" });
    preview.onload = () => afterPaint(() => { // the part that the networks will see
      photo.cut ??= cutBy(preview, crop || Infinity);
      if (photo.refusal) return;
      const cut = cutOf(photo), words = make("p", { className: cut ? "sx-cut" : "sx-hint" }, cut ? cutWords(cut) : make("b", {}, say(crop ? "js_sees_square" : "js_sees_whole"), " "), cut || photo.example ? "" : say("js_cut_none"));
      if (cut) words.setAttribute("role", "status");
      seen.replaceChildren(...(crop ? [cropOf(preview, crop)] : []), words);
      if (!crop) return;
      const { naturalWidth: width, naturalHeight: height } = preview;
      const rem = Math.min(7.5 / width, 5.6 / height) * crop * Math.min(width, height);
      const central = make("i", { className: "sx-central" });
      central.style.width = central.style.height = `${rem}rem`;
      frame.append(central);
    });
    const remove = make("button", { type: "button", className: "sx-remove", textContent: say("js_photo_remove") });
    remove.setAttribute("aria-label", say("js_photo_remove_which", { number: index + 1 }));
    remove.onclick = () => {
      URL.revokeObjectURL(photo.url);
      photos.splice(index, 1);
      refuse("");
      changed();
      at("#sx-file").focus();
    };
    const about = make("div", { className: "sx-about" },
      make("b", {}, say("js_photo", { number: index + 1 })), make("span", { className: "sx-hint" }, size(photo.file.size)),
      make("span", { className: "sx-hint sx-file-name" }, photo.file.name));
    const item = make("li", { className: "sx-photo" }, frame, about, seen);
    if (photo.refusal) {
      item.classList.add("sx-refused");
      if (!shared) item.append(make("div", { className: "sx-refusal-of", role: "alert" }, make("p", { className: "sx-refusal" }, photo.refusal)));
    }
    item.append(make("div", { className: "sx-acts" }, ...(photo.example ? [] : [again]), remove));
    return item;
  }));
  showStep();
  settle();
}

const afterPaint = (work) => requestAnimationFrame(() => setTimeout(work));

// Other photos: whether they show one lesion is to be said again.
function changed() {
  at(".sx-one-yes").checked = false;
  show();
}

const isShared = () => Boolean(refusal?.shared) && (asked.photos.length > 1 || photos.length === 1) && asked.photos.every((photo) => photos.includes(photo) && photo.refusal);

// On a phone the record of a refusal lies below the whole form.
function toRecord() {
  const pseudonym = document.querySelector(".sx-unjudged-report [data-pseudonym]");
  pseudonym.scrollIntoView({ block: "center" });
  pseudonym.focus({ preventScroll: true });
}

// The next step of a case that has no answer, as large as that of an answer. What answers ask for
// stays when the photos go.
function showStep() {
  const place = at(".sx-step"), refused = photos.some((photo) => photo.refusal);
  const step = refusal?.asks || (refused && refusal) ? refusal : refused ? JSON.parse(form.dataset.step) : null;
  const shown = JSON.stringify([step, isShared(), canSay()]);
  if (place.dataset.shown === shown) return;
  place.dataset.shown = shown;
  if (!step) { place.replaceChildren(); return; }
  const paragraph = (className, ...words) => words.join("") ? [make("p", { className }, ...words)] : [];
  place.replaceChildren(make("section", { className: `sx-card sx-next sx-${step.urgency}` },
    make("h2", {}, step.heading, " ", make("span", { className: "sx-tier" }, step.tier)),
    ...paragraph("sx-advice", step.advice), ...paragraph("sx-sooner", step.sooner), ...paragraph("sx-small sx-because", step.because),
    make("p", { className: "sx-small sx-unjudged" }, make("b", {}, form.dataset.notAssessed)),
    make("button", { className: "sx-button sx-to-record", type: "button", onclick: toRecord }, step.record),
    ...(isShared() ? paragraph("sx-small sx-refusal", step.shared) : []), ...(canSay() ? saying(step) : [])));
}

// A person may say how photos were taken that the check of modality alone refused: of these alone.
const canSay = () => Boolean(refusal?.unless) && photos.length === asked.photos.length && photos.every((photo) => asked.photos.includes(photo) && photo.refusal);
function saying({ button, hazard, unless }) {
  const say = make("button", { type: "button", className: "sx-button sx-say", textContent: button });
  say.setAttribute("aria-describedby", "sx-say-hazard");
  say.onclick = () => ask({ modality: unless });
  return [make("p", { className: "sx-warning", id: "sx-say-hazard" }, hazard), make("p", {}, say)];
}

// Facts of one patient must not pass to the next: where none of the photos that they were given with
// is left, it is asked whose they are before another answer.
const stands = () => given().some(({ value }) => value) || at("[name=taken]").value;
const passesOn = () => Boolean(stands()) && subject.length > 0 && !subject.some((photo) => photos.includes(photo));
const held = () => JSON.stringify([given().map(({ name, value }) => [name, value]), at("[name=taken]").value]);
function settle() {
  subject = subject.filter(isOwn); // no fact is of an example's person
  if (!stands() || !subject.length) subject = photos.filter(isOwn);
  const whose = at(".sx-whose");
  whose.hidden = !passesOn();
  at(".sx-whose-facts").textContent = [...facts(), answers(), at("[name=taken]").value].filter(Boolean).join(" · ");
  at(".sx-new").hidden = !holds && !answered;
  // A record of a refusal is of the photos and facts that were sent.
  const stale = holds !== held() || asked.photos.some((photo) => !photos.includes(photo));
  form.classList.toggle("sx-stale", stale);
}

function forgetFacts() {
  form.reset();
  describeFacts();
  countAnswers();
  for (const note of form.querySelectorAll(".sx-private")) note.textContent = "";
  at(".sx-facts").open = at(".sx-asks").open = false;
  wrongNumber();
}

function replace(photo, url) {
  URL.revokeObjectURL(photo.url);
  photo.url = url;
}

const isOwn = (photo) => !photo.example;

function add(files, camera = false) {
  refuse("");
  const place = photos.indexOf(retaken);
  retaken = null;
  if (place >= 0 && files.length) {
    URL.revokeObjectURL(photos[place].url);
    photos.splice(place, 1);
  }
  drop(({ example }) => example); // an example is looked at alone
  for (const file of files) {
    if (photos.length >= most) { refuse(say("js_photos_most", { most })); break; }
    const big = file.size > maxBytes;
    const photo = { file, camera, url: URL.createObjectURL(file), refusal: big
      ? say("js_photo_large", { most: maxBytes >> 20 }) : "" };
    if (place >= 0 && file === files[0]) photos.splice(place, 0, photo); else photos.push(photo);
  }
  changed();
}

function drop(which) {
  for (const photo of photos.filter(which)) {
    URL.revokeObjectURL(photo.url);
    photos.splice(photos.indexOf(photo), 1);
  }
}

// An example goes the way of any photo: it is fetched, chosen and sent; no fact is of its person.
async function example({ dataset }) {
  if (!NEXT[state].send) return;
  let file;
  try {
    const answer = await fetch(dataset.example);
    if (!answer.ok) throw new Error(answer.status);
    file = new File([await answer.blob()], dataset.file, { type: "image/jpeg" });
  } catch { refuse(say("js_example_unloaded")); return; }
  if (!NEXT[state].send || photos.some(isOwn)) return; // chosen meanwhile
  add([file]);
  photos[0].example = true;
  ask();
}

// The button says what it does, or what is missing; the focus reaches it in any state.
function name() {
  const ask = at(".sx-ask"), on = ask.classList.contains("sx-busy"), none = !photos.length;
  ask.setAttribute("aria-disabled", on || none);
  ask.firstElementChild.textContent = on ? `${say("js_looking")} …` : say(none ? "js_photo_first" : "js_look");
  at("#sx-ask-why").textContent = none ? say("js_photo_none") : "";
}

function work(on) {
  at(".sx-ask").classList.toggle("sx-busy", on);
  name();
  at(".sx-live").textContent = on ? say("js_looking") : "";
}

function facts() {
  return given().filter(({ value, dataset }) => value && !("question" in dataset)).map((field) => {
    if (field.type === "number") return `${field.value}\u00a0${field.placeholder}`;
    return field.type === "radio" ? say("js_skin", { name: field.dataset.name }) : field.selectedOptions[0].textContent.toLowerCase();
  });
}

const noFacts = at(".sx-given").textContent;
function describeFacts() { at(".sx-given").textContent = facts().join(" · ") || noFacts; }

// How many questions are answered, in words; "" for none.
function answers() {
  const n = given().filter(({ dataset }) => "question" in dataset).length;
  return n ? say("js_answers", { n }) : "";
}

const noAnswers = at(".sx-asks-given").textContent;
function countAnswers() { at(".sx-asks-given").textContent = answers() || noAnswers; }

// The field of each fact about the person, of several radio buttons the chosen one.
function given() {
  return [...form.querySelectorAll("[data-fact]")].filter((field) => field.type !== "radio" || field.checked);
}

// The line above an answer says what it is about, whatever the form holds since.
function describe() {
  at(".sx-summary").textContent = asked.words;
  at(".sx-minis").replaceChildren(...asked.photos.filter((photo) => photos.includes(photo)).map((photo) => {
    const mini = make("img", { src: photo.url, alt: "" });
    mini.onerror = () => mini.remove();
    return make("li", {}, mini);
  }));
}

function fold(on) {
  at(".sx-asked").hidden = !on;
  at(".sx-form").hidden = on;
  at(".sx-back").hidden = !answered;
}

// Form and answer are places in the browser's history: Back leads from one to the other.
function go(place) {
  if (history.state?.skindx !== place) history.pushState({ ...history.state, skindx: place }, "");
  fold(place === "answer");
}
window.addEventListener("popstate", ({ state }) => fold(answered && state?.skindx === "answer"));
// To reload or to leave loses photos and answer: the browser asks first.
let leaving = false; // the person logs out
document.addEventListener("skindx-leaving", () => { leaving = true; });
window.addEventListener("beforeunload", (event) => { if (leaving) return; if (photos.some(isOwn) || (answered && !asked.photos[0]?.example)) event.preventDefault(); });

// Marks the numbers that cannot be, and returns the first.
function wrongNumber() {
  return given().filter((field) => field.type === "number").filter((field) => {
    const wrong = !field.checkValidity();
    at(`#sx-${field.name}-problem`).textContent = wrong ? field.dataset.problem : "";
    field.setAttribute("aria-invalid", wrong);
    return wrong;
  })[0];
}

// With "one" the person says that photos that seem to differ show one lesion.
async function ask({ one = false, modality = "" } = {}) {
  if (!NEXT[state].send) return;
  refuse("");
  const tried = photos.every((photo) => photo.example);
  if (photos.length && !tried && passesOn()) {
    at(".sx-whose").focus();
    at(".sx-whose").scrollIntoView({ block: "center" });
    return;
  }
  for (const photo of photos) if (photo.file.size <= maxBytes) photo.refusal = "";
  if (photos.length) refusal = null;
  show();
  if (!photos.length) { refuse(say("js_photo_none")); at("#sx-file").focus(); return; }
  const wrong = !tried && wrongNumber();
  if (wrong) { wrong.closest("details").open = true; wrong.focus(); return; }
  if (photos.some((photo) => photo.refusal)) return;
  step("send");
  // What the form says now is asked, whatever it says once the photos are sent.
  const mine = ++question, chosen = [...photos], words = tried ? say("js_example") : [say("js_photos", { n: photos.length }), ...facts(), answers()].filter(Boolean).join(" · ");
  const patient = tried ? {} : Object.fromEntries(given().map(({ name, value }) => [name, value]));
  const taken = await Promise.allSettled(chosen.map((photo) => sent(photo.file)));
  if (mine !== question) return; // cleared meanwhile
  taken.forEach(({ status, reason }, index) => {
    if (status === "rejected") chosen[index].refusal = unsent(reason);
  });
  if (chosen.some((photo) => photo.refusal)) { show(); step("unsent"); return; }
  const paths = taken.map(({ value }) => value.path);
  asked = { words, photos: chosen };
  if (!tried) subject = chosen;
  const sending = held();
  holds = "";
  step("sent");
  unfinished.push(mine);
  trigger("ask", { question: mine, photos: paths, cuts: chosen.map(cutOf), answered, patient, taken: tried ? "" : at("[name=taken]").value, one_lesion: one || at(".sx-one-yes").checked, modality });
  Object.assign(asked, { holds: sending, modality });
}

function clear() {
  if (!step("clear")) return;
  question += 1;
  at(".sx-later").textContent = "";
  document.dispatchEvent(new Event("skindx-cleared"));
  trigger("again", { question });
}

watch("value", () => {
  const { kind, question: number, refusals, shown } = props.value;
  if (kind === "again") {
    if (!step("cleared")) return;
    for (const photo of photos.splice(0)) URL.revokeObjectURL(photo.url);
    forgetFacts();
    answered = false;
    asked = { words: "", photos: [] };
    refusal = null;
    holds = "";
    subject = [];
    refuse("");
    show();
    go("form");
    window.scrollTo(0, 0);
    at("#sx-file").focus({ preventScroll: true });
    return;
  }
  if (number !== question) return; // of a case that was cleared: the server shows nothing of it either
  step("told"); // after it was given up as lost, too
  refuse("");
  for (const [index, url] of Object.entries(shown ?? {})) if (photos.includes(asked.photos[index])) replace(asked.photos[index], url);
  if (kind === "answered") {
    answered = true;
    holds = "";
    show();
    describe();
    go("answer");
    window.scrollTo(0, 0);
  } else if (kind === "differ") {
    differ.showModal();
    differ.querySelector("[data-keep]").focus();
  } else if (kind === "refused") {
    for (const { photo, message } of refusals) { // of no photo of ours: it is about the whole case
      if (photos.includes(asked.photos[photo])) asked.photos[photo].refusal = message; else refuse(message);
    }
    refusal = props.value.step;
    if (refusal && isOwn(asked.photos[0])) holds = asked.holds;
    show();
    (at(".sx-step:not(:empty)") ?? at(".sx-refusal:not(:empty)"))?.scrollIntoView({ block: "center" });
  }
});

form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
form.addEventListener("change", (event) => {
  if (event.target.type === "file") { add(event.target.files, event.target.id === "sx-camera"); event.target.value = ""; }
  const note = at(`.sx-private[data-of="${event.target.name}"]`);
  if (note) note.textContent = event.target.selectedOptions[0].dataset.note ?? "";
  describeFacts();
  countAnswers();
  settle();
});
at("[data-same]").onclick = () => { subject = photos.filter(isOwn); settle(); at(photos.length ? ".sx-ask" : "#sx-file").focus(); };
at("[data-other]").onclick = () => { // neither the facts nor the advice or the name are of this patient
  forgetFacts();
  refusal = null;
  at(".sx-later").textContent = "";
  document.dispatchEvent(new Event("skindx-cleared"));
  show();
  at(photos.length ? ".sx-ask" : "#sx-file").focus();
};
for (const input of form.querySelectorAll("input[type=file]")) input.addEventListener("cancel", () => { retaken = null; });
at("[name=taken]").max = new Date().toLocaleDateString("sv"); // ISO 8601
// The examples are one stop of the Tab key; the arrow keys lead from one to the next.
const examples = [...form.querySelectorAll("[data-example]")];
for (const button of examples) button.onclick = () => example(button);
at(".sx-examples")?.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = examples.at((examples.indexOf(event.target) + step) % examples.length);
  for (const button of examples) button.tabIndex = button === next ? 0 : -1;
  next.focus();
});
form.addEventListener("input", (event) => { if (event.target.getAttribute("aria-invalid") === "true") wrongNumber(); });
at(".sx-change").onclick = () => { go("form"); at("#sx-file").focus(); };
at(".sx-back").onclick = () => { go("answer"); document.querySelector(".sx-result")?.focus(); };
// Photos that seem to be of two lesions are asked about before an answer.
const differ = at(".sx-differ");
differ.addEventListener("click", ({ target }) => {
  if (!target.closest("button")) return;
  differ.close();
  if (target.closest("[data-one]")) ask({ one: true, modality: asked.modality }); else at(".sx-remove")?.focus();
});
// A new case clears this one, which is asked first; the focus is on what changes nothing.
const sure = at(".sx-clears");
at(".sx-new").onclick = at(".sx-again").onclick = ({ target }) => {
  if (target.matches(".sx-again") && document.querySelector("#sx-follow [data-kept]")) { clear(); return; } // the case stays in the case book
  sure.showModal();
  sure.querySelector("[data-keep]").focus();
};
sure.addEventListener("click", ({ target }) => {
  if (!target.closest("button")) return;
  sure.close();
  if (!target.closest("[data-keep]")) clear();
});
document.addEventListener("skindx-lost", ({ detail }) => {
  const clearing = state === "clearing";
  if (!step("lost")) return;
  unfinished.length = 0;
  refuse(detail || sayAll(clearing ? "js_lost_clearing" : "js_lost_answer", "js_lost_do"));
  if (clearing) fold(false);
});
document.addEventListener("skindx-done", () => {
  const of = unfinished.shift();
  if (of === question && step("done")) refuse(say("js_no_answer"));
});
// By their place in the case; a photo that was removed since is gone.
document.addEventListener("skindx-photos", (event) => event.detail.files.push(...asked.photos.map((photo) => photos.includes(photo) && photo.file)));
document.addEventListener("skindx-again", ({ detail }) => {
  clear();
  if (detail) at(".sx-later").textContent = say("js_later", detail);
});
document.addEventListener("paste", (event) => {
  const pasted = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
  if (pasted.length && !at(".sx-form").hidden && form.offsetParent) add(pasted);
});
for (const kind of ["dragover", "drop"]) form.addEventListener(kind, (event) => {
  event.preventDefault();
  at(".sx-drop").classList.toggle("sx-over", kind === "dragover");
  if (kind === "drop") add([...event.dataTransfer.files]);
});
form.addEventListener("dragleave", () => at(".sx-drop").classList.remove("sx-over"));

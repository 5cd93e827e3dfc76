// Every request of the page passes here: a session that has ended, or an answer that was lost on its
// way, is reported once, to all parts of the page, by the event skindx-lost; its detail is a sentence.
document.documentElement.lang = catalogue().language;
const outWords = () => sayAll("js_out", "js_out_do");
const banner = document.createElement("div");
banner.className = "sx-out";
banner.setAttribute("role", "alert");
element.append(banner);

function ended() {
  if (banner.firstChild) return;
  const again = Object.assign(document.createElement("a"), { href: "login", target: "_blank", rel: "noopener", className: "sx-button sx-primary", textContent: say("js_log_in") });
  banner.append(Object.assign(document.createElement("p"), { textContent: outWords() }), again);
}

// Gradio does not tell the page when its question, or the stream of answers, fails on the way.
const plain = window.fetch;
const asks = [[/\/gradio_api\/queue\/join\b/, "application/json"], [/\/gradio_api\/queue\/data\b/, "text/event-stream"]];
const lost = (detail = "") => document.dispatchEvent(new CustomEvent("skindx-lost", { detail }));
// A stream ends when all that it waits for has come; what is asked then is told by the next one.
let streams = 0, open = 0, joins = 0;
async function watched(body) {
  const number = ++streams;
  open += 1;
  await body?.pipeTo(new WritableStream()).catch(() => {});
  open -= 1;
  const asking = joins;
  setTimeout(() => { if (!open && streams === number && joins === asking) lost(); }, 2000);
}
window.fetch = async (...sent) => {
  const url = String(sent[0]?.url ?? sent[0]), place = asks.findIndex(([route]) => route.test(url));
  let answer;
  if (place === 0) joins += 1;
  try { answer = await plain(...sent); } catch (error) {
    if (place < 0 || error?.name === "AbortError") throw error;
    lost();
    // To a network error Gradio reloads the page, and the photos would be gone.
    return new Response("{}", { status: 503, headers: { "content-type": "application/json" } });
  }
  if (answer.status === 401) ended(); else if (answer.ok) banner.replaceChildren();
  if (place < 0) return answer;
  if (!answer.ok || !answer.headers.get("content-type")?.startsWith(asks[place][1])) lost(answer.status === 401 ? outWords() : "");
  else if (place) watched(answer.clone().body);
  return answer;
};

// Logging out needs one click: the browser does not ask about the photos and the answer. Other tabs
// of this browser leave too, and a page that Back would show from memory is asked for again.
const tabs = new BroadcastChannel("skindx"), out = element.querySelector(".sx-login");
function leave(elsewhere = false) {
  const left = { unsaved: false };
  document.dispatchEvent(new CustomEvent("skindx-leaving", { detail: left }));
  document.body.replaceChildren();
  location.replace(!elsewhere ? "login" : left.unsaved ? "login?out=unsaved" : "login?out=tab");
}
tabs.onmessage = () => { if (out) leave(true); };
out?.addEventListener("submit", async (event) => {
  event.preventDefault();
  // A note that is not saved is asked about first.
  if (!document.dispatchEvent(new CustomEvent("skindx-logging-out", { cancelable: true, detail: () => out.requestSubmit() }))) return;
  try {
    const answer = await plain(out.action, { method: "POST", redirect: "manual" });
    if (answer.type !== "opaqueredirect" && answer.status !== 401) throw new Error(answer.status);
  } catch {
    banner.replaceChildren(Object.assign(document.createElement("p"), { textContent: sayAll("js_still_in", "js_still_in_do") }));
    return;
  }
  tabs.postMessage("out");
  leave();
});
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

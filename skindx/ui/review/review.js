// The review page. Data come as JSON and go into the page as text, never as HTML.
'use strict';

const ROW = 72;
const VERDICTS = [
  // verdict, key, words, question, for which items
  ['keep', 'k', 'Keep', 'image'], ['withhold', 'w', 'Withhold', 'image'], ['remove', 'r', 'Remove', 'image'],
  ['relabel', 'l', 'Relabel …', 'label'],
  ['skin', 'i', 'Skin', 'skin'], ['not skin', 'o', 'Not skin', 'skin'],
  ['same', 's', 'Same lesion', 'copy'], ['different', 'd', 'Different', 'copy'],
  ['box right', 'y', 'Box right', 'box'], ['box wrong', 'n', 'Box wrong', 'box'],
];
const QUESTION = Object.fromEntries(VERDICTS.map(([verdict, , , question]) => [verdict, question]));
const KEYS = [
  ['→ ↓ J', 'next'], ['← ↑ B', 'back'], ...VERDICTS.map(([, key, words]) => [key.toUpperCase(), words]),
  ['E', 'draw boxes: drag for a new one, drag a box or its corners'], ['C', 'note'], ['U', 'undo'],
  ['⇧U', 'redo'], ['F', 'filters'], ['?', 'these keys'],
];

let all; // what the server sent at first
let view = []; // numbers of the items that the filters leave
let at = -1; // the item shown
let detail = null;
let loading = Promise.resolve(); // until the facts and boxes of the item shown are here
let drawn = null; // boxes while they are drawn
let chosen = -1;
let cursor = 0;
let by = '';
const answers = new Map();
const history = { undo: [], redo: [], ours: {} };
const pending = new Map(); // item -> answers on their way
let sending = Promise.resolve();
let turn = Promise.resolve(); // of undo and redo
let leaving = false;
addEventListener('beforeunload', () => { leaving = true; });

function say(text, alert = false) {
  $('message').textContent = text && text[0].toUpperCase() + text.slice(1);
  $('message').className = alert ? 'alert' : '';
  $('message').setAttribute('role', alert ? 'alert' : 'status');
}

const labelName = (label) => (all.labels.find(([key]) => key === label) ?? [label, label])[1];
const reasonsOf = (item) => all.items[item][2];
const waitingOf = (item) => all.items[item][3];
const isPair = (item) => all.items[item][4] > 1;
const reasonName = (number) => all.reasons[number][1];

// Take the server's answers, except where a newer one of ours is on its way; `everything`: all of them.
function take(changes, everything = false) {
  for (const change of changes) {
    const ours = everything ? [] : Object.entries(answers.get(change.at) ?? {});
    const newer = ours.filter(([question, { revision }]) => revision > (change.answers[question]?.revision ?? 0));
    change.answers = { ...change.answers, ...Object.fromEntries(newer) };
    answers.set(change.at, change.answers);
    const numbers = Object.fromEntries(all.reasons.map(([reason], number) => [reason, number]));
    all.items[change.at][3] = change.waiting.map((reason) => numbers[reason]);
    if (detail && change.at === at) Object.assign(detail, change);
  }
}

// What an answer settles, before the server says so.
function settled(item, verdict) {
  const question = QUESTION[verdict];
  const gone = { label: ['label'], skin: ['not-skin', 'off-topic'], copy: ['copy'], box: ['box'] }[question];
  return waitingOf(item).filter((number) => {
    const [reason] = all.reasons[number];
    return gone ? !gone.includes(reason) : question === 'image' && reason === 'box' && verdict !== 'remove';
  });
}

// -- the list: only rows in sight are in the page -------------------------------------------------

const rows = new Map();
let later = 0;

function drawRows() {
  const list = $('list');
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(view.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  for (const [place, row] of rows) if (place < first || place >= last) { row.remove(); rows.delete(place); }
  for (let place = first; place < last; place += 1) {
    if (!rows.has(place)) rows.set(place, newRow(place));
    fillRow(rows.get(place), place);
  }
  clearTimeout(later);
  later = setTimeout(() => {
    for (const [place, row] of rows) {
      const image = row.firstChild;
      if (!image.src) image.src = `thumb/${view[place]}`;
    }
  }, 60); // rows that are only scrolled past need no image
}

function newRow(place) {
  const row = document.createElement('div');
  row.className = 'row';
  row.setAttribute('role', 'option');
  row.id = `row-${place}`;
  row.style.top = `${place * ROW}px`;
  const image = document.createElement('img');
  image.alt = '';
  image.loading = 'eager';
  const words = document.createElement('div');
  words.append(document.createElement('span'), document.createElement('span'));
  words.lastChild.className = 'why';
  row.append(image, words);
  row.addEventListener('click', () => show(view[place]));
  $('rows').append(row);
  return row;
}

function fillRow(row, place) {
  const item = view[place];
  const waiting = waitingOf(item);
  const given = Object.values(answers.get(item) ?? {}).filter((answer) => answer.verdict).map((answer) => answer.verdict);
  row.setAttribute('aria-posinset', place + 1);
  row.setAttribute('aria-setsize', view.length);
  row.setAttribute('aria-selected', item === at);
  row.lastChild.firstChild.textContent = all.labels[all.items[item][0]][1] + (isPair(item) ? ' – pair' : '');
  const why = (waiting.length ? waiting : reasonsOf(item)).map(reasonName).join(', ');
  row.lastChild.lastChild.textContent = given.length ? `✓ ${given.join(', ')}${waiting.length ? `; open: ${why}` : ''}` : why;
}

// Whether reasons are those that the filters ask for.
function wanted(reasons) {
  const reason = $('reason').value;
  return reason === '' ? reasons.length > 0 : reasons.includes(+reason);
}

// Count what the filters leave, and with `status` return the numbers of the items to show.
function count(status) {
  const [reason, label, source] = ['reason', 'class', 'source'].map((id) => $(id).value);
  const none = reason !== '' && all.reasons[+reason][0] === '';
  const left = [];
  let [asking, done] = [0, 0];
  all.items.forEach(([itemLabel, itemSource, reasons, waiting, , asks], item) => {
    if ((label !== '' && itemLabel !== +label) || (source !== '' && itemSource !== +source)) return;
    if (none ? reasons.length : reason !== '' && !reasons.includes(+reason)) return;
    asking += asks;
    done += asks && !wanted(waiting) ? 1 : 0;
    if (!status) return;
    const given = () => Object.values(answers.get(item) ?? {}).some((answer) => answer.verdict);
    if (status === 'all' || (status === 'open' ? wanted(waiting) : given())) left.push(item);
  });
  if (status) view = left;
  $('bar').max = Math.max(1, asking);
  $('bar').value = done;
  $('done').textContent = `${done} of ${asking} answered, ${view.length} shown`;
}

const progress = () => count('');

function filter(keep = -1) {
  count($('status').value);
  if (keep >= 0 && !view.includes(keep)) view.unshift(keep);
  for (const row of rows.values()) row.remove();
  rows.clear();
  $('rows').style.height = `${view.length * ROW}px`;
  if (view.length) show(keep >= 0 ? keep : view[0]); else showNothing();
}

// -- one item ---------------------------------------------------------------------------------------

function showNothing() {
  at = -1;
  detail = null;
  $('title').textContent = 'Nothing to show';
  $('image').removeAttribute('src');
  for (const id of ['answers', 'given', 'facts', 'boxes']) $(id).replaceChildren();
  say($('status').value === 'open' ? 'Nothing is open here. The next skindx build obeys the answers.' : '');
  drawRows();
}

async function show(item) {
  if (drawn) stopDrawing();
  at = item;
  detail = null;
  const place = view.indexOf(item);
  const list = $('list');
  if (place * ROW < list.scrollTop) list.scrollTop = place * ROW;
  else if ((place + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (place + 1) * ROW - list.clientHeight;
  list.setAttribute('aria-activedescendant', `row-${place}`);
  const label = all.labels[all.items[item][0]][1];
  $('image').hidden = true; // never another item's image under this one's words
  $('image').src = `image/${item}`;
  $('image').alt = isPair(item) ? `two images and the second laid on the first, ${label}` : label;
  $('title').textContent = `${isPair(item) ? 'Pair' : 'Image'} ${place + 1} of ${view.length}: ${label}`;
  $('boxes').replaceChildren();
  $('facts').replaceChildren();
  $('note').value = '';
  drawRows();
  drawAnswers();
  const next = view[place + 1];
  if (next !== undefined) new Image().src = `image/${next}`;
  loading = load(item);
  await loading;
}

async function load(item) {
  try {
    if (pending.get(item)) await sending;
    const told = await ask(`item/${item}`);
    if (item !== at) return;
    detail = told;
    take([told]);
    const why = (told.why ?? []).map(([reason, text]) => (text ? `${reason}: ${text}` : reason)).join('; ');
    const waiting = waitingOf(item).map(reasonName).join(', ');
    $('title').textContent += waiting ? ` – open: ${waiting}` : '';
    facts([...(why ? [['why', why]] : []), ...told.facts]);
    if (document.activeElement !== $('note')) $('note').value = answers.get(item)?.note?.note ?? '';
    if (told.size) $('canvas').style.setProperty('--aspect', told.size[0] / told.size[1]);
    drawBoxes();
    drawAnswers();
    drawRows();
  } catch (error) {
    say(error.message, true);
  }
}

$('image').addEventListener('load', () => {
  const image = $('image');
  image.hidden = false;
  $('canvas').style.setProperty('--aspect', image.naturalWidth / image.naturalHeight);
});

function offered() {
  if (at < 0) return [];
  if (isPair(at)) return VERDICTS.filter(([, , , question]) => question === 'copy');
  const reasons = [...reasonsOf(at)].map((number) => all.reasons[number][0]);
  const skin = reasons.includes('not-skin') || reasons.includes('off-topic');
  const box = detail?.size && detail.boxes_are !== 'none';
  return VERDICTS.filter(([, , , question]) => question !== 'copy' && (question !== 'skin' || skin) && (question !== 'box' || box));
}

function drawAnswers() {
  const given = answers.get(at) ?? {};
  const buttons = offered().map(([verdict, key, words, question]) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(words, ' ', key1(key));
    if (given[question]?.verdict === verdict) { button.className = 'given'; button.setAttribute('aria-pressed', 'true'); }
    button.addEventListener('click', () => decide(verdict));
    return button;
  });
  if (at >= 0 && !isPair(at) && detail?.size) {
    const button = document.createElement('button');
    button.type = 'button';
    button.append('Draw boxes ', key1('e'));
    button.addEventListener('click', startDrawing);
    buttons.push(button);
  }
  $('answers').replaceChildren(...buttons);
  $('given').replaceChildren(...Object.values(given).filter((answer) => answer.verdict).map((answer) => {
    const line = document.createElement('li');
    const what = answer.label ? `${answer.verdict}: ${labelName(answer.label)}` : answer.verdict;
    line.textContent = `${what}${answer.by ? `, by ${answer.by}` : ''}${answer.note ? ` (${answer.note})` : ''}`;
    return line;
  }));
  $('undo').disabled = !history.undo.length;
  $('redo').disabled = !history.redo.length;
}

function key1(key) {
  const element = document.createElement('kbd');
  element.textContent = key.toUpperCase();
  return element;
}

function step(places) {
  if (!view.length) return;
  const place = view.indexOf(at);
  show(view[(place + places + view.length) % view.length]);
}

// The next item that is open; the last answered one stays where nothing else is.
function onward() {
  const opens = (item) => wanted(waitingOf(item));
  if (opens(at)) { show(at); return; }
  if ($('status').value !== 'open') { step(1); return; }
  const place = view.indexOf(at);
  for (let n = 1; n < view.length; n += 1) {
    const item = view[(place + n) % view.length];
    if (opens(item)) { show(item); return; }
  }
  drawAnswers();
  drawRows();
  say('Nothing is open here any more. The next skindx build obeys the answers.');
}

// -- answers ----------------------------------------------------------------------------------------

async function decide(verdict, about = {}) {
  await turn; // what was undone before this key
  const question = QUESTION[verdict] ?? 'note';
  if (question === 'box' && !detail) await loading;
  if (at < 0 || (question !== 'note' && !offered().some(([one]) => one === verdict) && !about.boxes)) return;
  if (!by && !(await askName())) return;
  let { label, boxes } = about;
  if (verdict === 'relabel' && !label) {
    label = await askClass();
    if (!label) return;
  }
  if (verdict === 'box right' && !boxes) boxes = detail.boxes;
  const body = { at, verdict, by, label: label ?? '', note: about.note ?? '', boxes: boxes ?? [] };
  history.redo = [];
  post(body);
  say(`${verdict}${label ? `: ${labelName(label)}` : ''}.`);
  if (question === 'note') drawAnswers(); else onward();
}

// Show an answer at once, send it behind those before it, and take what the server makes of it.
function post(body) {
  const item = body.at;
  const question = QUESTION[body.verdict] ?? 'note';
  const given = { ...(answers.get(item) ?? {}) };
  const revision = given[question]?.revision ?? 0;
  history.undo.push({ at: item, question, before: revision, body });
  given[question] = { verdict: body.verdict, label: body.label, by, note: body.note, revision: revision + 1 };
  answers.set(item, given);
  all.items[item][3] = settled(item, body.verdict);
  history.ours[`${item} ${question}`] = revision + 1;
  remember();
  send({ ...body, revision }, item, () => { history.undo = history.undo.filter((one) => one.body !== body); });
  setTimeout(progress); // behind the next frame: it goes through all items
}

function send(body, item, failed) {
  pending.set(item, (pending.get(item) ?? 0) + 1);
  sending = sending.then(async () => {
    try {
      take((await ask('answer', body)).changes);
      remember();
    } catch (error) {
      // A reload cuts off the reply, not the answer: it would be forgotten as one that failed.
      if (leaving) await new Promise((resolve) => { setTimeout(resolve, 10_000); });
      failed();
      remember();
      say(error.message, true);
      take([await ask(`item/${item}`).catch(() => ({ at: item, answers: answers.get(item) ?? {}, waiting: [] }))], true);
      const place = view.indexOf(item);
      if (place >= 0) { pending.delete(item); await show(item); say(error.message, true); }
    }
    pending.set(item, Math.max(0, (pending.get(item) ?? 0) - 1));
    progress();
    drawRows();
    if (item === at) drawAnswers();
  });
}

// One undo or redo after the other: each depends on the reply to the one before it.
function inTurn(change) {
  turn = turn.then(change);
  return turn;
}

const undo = () => inTurn(undoLast);
const redo = () => inTurn(redoLast);

async function undoLast() {
  await sending;
  const last = history.undo.pop();
  if (!last) { say('Nothing was answered since the page was opened, so there is nothing to undo.'); return; }
  const name = `${last.at} ${last.question}`;
  const now = answers.get(last.at)?.[last.question];
  if (now?.revision !== history.ours[name]) {
    say(`${now?.by || 'Somebody'} has answered this since; it is not undone.`, true);
    return;
  }
  const body = { at: last.at, by, revision: now.revision, question: last.question, before: last.before };
  history.ours[name] = now.revision + 1;
  send(body, last.at, () => { history.undo.push(last); history.ours[name] = now.revision; });
  await sending;
  if (history.undo.at(-1) === last) return;
  history.redo.push(last.body);
  remember();
  reveal(last.at);
  say(`Undone: ${last.body.verdict}.`);
}

async function redoLast() {
  await sending;
  const body = history.redo.pop();
  if (!body) { say('Nothing was undone, so there is nothing to do again.'); return; }
  post(body);
  reveal(body.at);
  say(`Again: ${body.verdict}.`);
}

function reveal(item) {
  if (view.includes(item)) show(item); else filter(item);
}

function remember() {
  sessionStorage.setItem('skindx-review', JSON.stringify({ where: location.pathname, ...history }));
}

async function news() {
  if (!all || document.hidden) return;
  try {
    const told = await ask(`changes/${cursor}`);
    cursor = told.cursor;
    const theirs = told.changes.filter(({ at: item, answers: given }) => Object.entries(given)
      .some(([question, { revision }]) => revision > (answers.get(item)?.[question]?.revision ?? 0)));
    if (!theirs.length) return;
    await sending;
    take(theirs);
    progress();
    drawRows();
    if (theirs.some((change) => change.at === at)) {
      drawAnswers();
      say('Somebody else has answered this meanwhile.');
    }
  } catch (error) {
    say(error.message, true);
  }
}

// -- boxes ------------------------------------------------------------------------------------------

function drawBoxes() {
  const svg = $('boxes');
  if (!detail?.size) { svg.replaceChildren(); return; }
  const [width, height] = detail.size;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  const shapes = (drawn ?? detail.boxes).flatMap(([x1, y1, x2, y2, label], number) => {
    const rect = shape('rect', { x: x1, y: y1, width: x2 - x1, height: y2 - y1 });
    rect.classList.toggle('proposed', !drawn && detail.boxes_are === 'proposed');
    rect.dataset.box = number;
    const title = shape('title', {});
    title.textContent = labelName(label);
    rect.append(title);
    if (!drawn || number !== chosen) return [rect];
    rect.classList.add('chosen');
    const radius = 7 * (width / Math.max(1, svg.clientWidth));
    return [rect, ...[[x1, y1, '0 1'], [x2, y1, '2 1'], [x1, y2, '0 3'], [x2, y2, '2 3']].map(([cx, cy, ends]) => {
      const corner = shape('circle', { cx, cy, r: radius });
      corner.dataset.ends = ends;
      return corner;
    })];
  });
  svg.replaceChildren(...shapes);
}

function shape(kind, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

async function startDrawing() {
  if (!detail) await loading;
  if (!detail?.size || drawn) return;
  drawn = detail.boxes.map((box) => [...box]);
  chosen = drawn.length - 1;
  $('draw').hidden = false;
  document.body.classList.add('drawing');
  $('box-label').value = drawn[chosen]?.[4] ?? 'lesion';
  drawBoxes();
  say('Drag over the lesion. Saved without a box, the image has no lesion.');
}

function stopDrawing() {
  drawn = null;
  $('draw').hidden = true;
  document.body.classList.remove('drawing');
  say('');
  drawBoxes();
}

function saveDrawing() {
  const boxes = drawn.filter(([x1, y1, x2, y2]) => x2 - x1 >= 1 && y2 - y1 >= 1);
  stopDrawing();
  decide('box right', { boxes });
}

function removeBox() {
  if (chosen < 0) return;
  drawn.splice(chosen, 1);
  chosen = drawn.length - 1;
  drawBoxes();
}

let drag = null;

function pixel(event) {
  const place = $('boxes').getBoundingClientRect();
  const [width, height] = detail.size;
  const within = (value, most) => Math.min(Math.max(value, 0), most);
  return [within(((event.clientX - place.left) / place.width) * width, width),
    within(((event.clientY - place.top) / place.height) * height, height)];
}

$('boxes').addEventListener('pointerdown', (event) => {
  if (!drawn || event.button) return;
  event.preventDefault();
  const [x, y] = pixel(event);
  const { ends, box } = event.target.dataset;
  if (ends) drag = { ends: ends.split(' ').map(Number) };
  else if (box !== undefined) { chosen = +box; drag = { from: [x, y], was: [...drawn[chosen]] }; } else {
    chosen = drawn.push([x, y, x, y, $('box-label').value]) - 1;
    drag = { ends: [2, 3] };
  }
  $('box-label').value = drawn[chosen][4];
  $('boxes').setPointerCapture(event.pointerId);
  drawBoxes();
});
$('boxes').addEventListener('pointermove', (event) => {
  if (!drag) return;
  const [x, y] = pixel(event);
  const box = drawn[chosen];
  if (drag.from) {
    const [width, height] = detail.size;
    const [x1, y1, x2, y2] = drag.was;
    const dx = Math.min(Math.max(x - drag.from[0], -x1), width - x2);
    const dy = Math.min(Math.max(y - drag.from[1], -y1), height - y2);
    box.splice(0, 4, x1 + dx, y1 + dy, x2 + dx, y2 + dy);
  } else {
    [box[drag.ends[0]], box[drag.ends[1]]] = [x, y];
  }
  drawBoxes();
});
$('boxes').addEventListener('pointerup', () => {
  if (!drag) return;
  drag = null;
  const [x1, y1, x2, y2, label] = drawn[chosen];
  drawn[chosen] = [Math.min(x1, x2), Math.min(y1, y2), Math.max(x1, x2), Math.max(y1, y2), label];
  if (Math.abs(x2 - x1) < 1 || Math.abs(y2 - y1) < 1) removeBox();
  drawBoxes();
});

// -- dialogues ----------------------------------------------------------------------------------------

function opened(dialog, begin) {
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue), { once: true });
    dialog.returnValue = '';
    dialog.showModal();
    begin?.();
  });
}

async function askName() {
  await opened($('name-dialog'), () => { $('by').value = by; $('by').select(); });
  const name = $('by').value.trim();
  if (!name) return false;
  by = name;
  localStorage.setItem('skindx-reviewer', by);
  $('who').textContent = by;
  return true;
}

function askClass() {
  const [dialog, input, list] = [$('class-dialog'), $('class-input'), $('class-list')];
  const current = all.labels[all.items[at][0]][0];
  const names = all.labels.slice(0, all.classes).filter(([label]) => label !== current);
  let matches = [];
  let marked = 0;
  const fill = () => {
    const typed = input.value.trim().toLowerCase();
    matches = names.filter(([label, name]) => `${label} ${name}`.toLowerCase().includes(typed));
    marked = Math.min(marked, Math.max(0, matches.length - 1));
    list.replaceChildren(...matches.map(([label, name], number) => {
      const line = document.createElement('li');
      line.setAttribute('role', 'option');
      line.id = `class-${number}`;
      line.setAttribute('aria-selected', number === marked);
      line.textContent = name;
      line.addEventListener('click', () => dialog.close(label));
      return line;
    }));
    input.setAttribute('aria-activedescendant', `class-${marked}`);
    list.children[marked]?.scrollIntoView({ block: 'nearest' });
  };
  input.oninput = () => { marked = 0; fill(); };
  input.onkeydown = (event) => {
    const moves = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (moves && matches.length) { event.preventDefault(); marked = (marked + moves + matches.length) % matches.length; fill(); }
    if (event.key === 'Enter') { event.preventDefault(); if (matches.length) dialog.close(matches[marked][0]); }
  };
  return opened(dialog, () => { input.value = ''; fill(); input.focus(); });
}

function showHelp() {
  $('keys').replaceChildren(...KEYS.flatMap(([key, words]) => {
    const [term, text] = [document.createElement('dt'), document.createElement('dd')];
    const mark = document.createElement('kbd');
    mark.textContent = key;
    term.append(mark);
    text.textContent = words;
    return [term, text];
  }));
  opened($('help-dialog'));
}

// -- keys ---------------------------------------------------------------------------------------------

const ACTIONS = {
  ArrowRight: () => step(1), ArrowDown: () => step(1), j: () => step(1),
  ArrowLeft: () => step(-1), ArrowUp: () => step(-1), b: () => step(-1),
  u: undo, U: redo, e: startDrawing, c: () => $('note').focus(), f: () => $('status').focus(), '?': showHelp,
  ...Object.fromEntries(VERDICTS.map(([verdict, key]) => [key, () => decide(verdict)])),
};
const DRAWING = { Enter: saveDrawing, y: saveDrawing, Escape: stopDrawing, Delete: removeBox, Backspace: removeBox, '?': showHelp };

document.addEventListener('keydown', (event) => {
  if (event.target === $('note') && (event.key === 'Enter' || event.key === 'Escape')) {
    event.preventDefault();
    $('note').blur();
    return;
  }
  if (event.target.closest('input, select, dialog') || document.querySelector('dialog[open]')) {
    if (event.key === 'Escape' && event.target.closest('#filters')) $('list').focus();
    return;
  }
  const key = event.key.length > 1 || event.key === 'U' ? event.key : event.key.toLowerCase();
  if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === 'z') {
    event.preventDefault();
    (event.shiftKey ? redo : undo)();
    return;
  }
  const action = (drawn ? DRAWING : ACTIONS)[key];
  const pressed = event.target.closest('button') && (event.key === 'Enter' || event.key === ' ');
  if (!action || pressed || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.repeat && !event.key.startsWith('Arrow')) return;
  event.preventDefault();
  action();
});

$('note').addEventListener('change', () => {
  if (at >= 0) decide('note', { note: $('note').value });
});
for (const id of ['status', 'reason', 'class', 'source']) $(id).addEventListener('change', () => filter());
$('filters').addEventListener('submit', (event) => event.preventDefault());
$('list').addEventListener('scroll', () => requestAnimationFrame(drawRows), { passive: true });
addEventListener('resize', drawRows);
for (const [id, action] of Object.entries({
  next: () => step(1), back: () => step(-1), undo, redo, help: showHelp, who: askName, 'box-remove': removeBox,
  'box-save': saveDrawing, 'box-cancel': stopDrawing, 'class-cancel': () => $('class-dialog').close(''),
})) $(id).addEventListener('click', action);
$('box-label').addEventListener('change', () => { if (drawn?.[chosen]) drawn[chosen][4] = $('box-label').value; });

function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
}

async function start() {
  try {
    all = await ask('state');
  } catch (error) {
    say(error.message, true);
    return;
  }
  for (const change of all.answered) answers.set(change.at, change.answers);
  cursor = all.cursor;
  $('name').textContent = all.name;
  document.title = `Review ${all.name}`;
  const counts = all.reasons.map((_, number) => all.items.filter((item) => item[2].includes(number)).length);
  const without = all.items.filter((item) => !item[2].length).length;
  options($('reason'), [['', 'all'], ...all.reasons.map(([reason, name], number) => [number, `${name} (${reason ? counts[number] : without})`])
    .filter(([number]) => counts[number] || (all.reasons[number][0] === '' && without))]);
  options($('class'), [['', 'all'], ...all.labels.map(([, name], number) => [number, name])]);
  options($('source'), [['', 'all'], ...all.sources.map((name, number) => [number, name])]);
  options($('box-label'), all.box_labels.map((label) => [label, labelName(label)]));
  const number = all.reasons.findIndex(([reason]) => reason && reason === all.reason);
  if (number >= 0) $('reason').value = number;
  if (number >= 0 && ['box', 'copy'].includes(all.reason)) $('status').value = 'all';
  by = all.by || localStorage.getItem('skindx-reviewer') || '';
  $('who').textContent = by || 'Your name …';
  const kept = JSON.parse(sessionStorage.getItem('skindx-review') ?? '{}');
  if (kept.where === location.pathname) Object.assign(history, { undo: kept.undo, redo: kept.redo, ours: kept.ours });
  const item = +(/^#item-(\d+)$/.exec(location.hash)?.[1] ?? -1); // the browsing page names one
  if (all.items[item]) $('status').value = 'all';
  filter(all.items[item] ? item : -1);
  setInterval(news, 4000);
  addEventListener('visibilitychange', news);
  if (!by) await askName();
}

start();

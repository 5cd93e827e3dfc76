// The page to browse a dataset. Data come as JSON and go into the page as text, never as HTML.
'use strict';

const CHOICES = ['label', 'split', 'source'];

let shown = null; // the last answer
let open = -1; // place on this page of the image that is open
let asked = 0;
let opened = 0;
let typing = 0;

function say(text, alert = false) {
  $('count').textContent = text && text[0].toUpperCase() + text.slice(1);
  $('count').className = alert ? 'alert' : '';
}

const many = (number, noun) => `${number.toLocaleString('en')} ${noun}${number === 1 ? '' : 's'}`;

// What the address keeps, so that a reload and the way back show the same.
function kept() {
  return new URLSearchParams(location.hash.slice(1));
}

// Ask for a page of what the filters leave; answers to older questions are dropped.
async function find(page, focus = false) {
  const query = new URLSearchParams();
  if ($('text').value.trim()) query.set('text', $('text').value.trim());
  for (const name of CHOICES) if ($(name).value) query.set(name, $(name).value);
  if (page) query.set('page', page);
  history.replaceState(null, '', `#${query}`);
  asked += 1;
  const mine = asked;
  try {
    const told = await ask(`find?${query}`);
    if (mine !== asked) return false;
    shown = told;
  } catch (error) {
    if (mine === asked) say(error.message, true);
    return false;
  }
  draw();
  if (focus) $('grid').querySelector('button')?.focus();
  return true;
}

function draw() {
  $('name').textContent = shown.name;
  document.title = `Browse ${shown.name}`;
  const of = shown.images === shown.all ? '' : ` of ${shown.all.toLocaleString('en')}`;
  say(shown.images ? `${shown.images.toLocaleString('en')}${of} images in ${many(shown.groups, 'group')}.` : 'No image fits. Search for less, or choose All images.');
  for (const name of CHOICES) options($(name), shown[name]);
  $('grid').replaceChildren(...shown.rows.map(tile));
  $('grid').scrollTop = 0;
  scrollTo(0, 0);
  $('page').value = shown.page + 1;
  $('page').max = shown.pages;
  $('of').textContent = `of ${shown.pages.toLocaleString('en')}`;
  $('before').disabled = shown.page === 0;
  $('after').disabled = shown.page + 1 === shown.pages;
  $('pages').hidden = shown.pages === 1;
}

// Choices that would show nothing are left out, but for the one that is chosen.
function options(select, pairs) {
  const value = select.value || (kept().get(select.id) ?? '');
  const all = pairs.reduce((sum, [, count]) => sum + count, 0);
  select.replaceChildren(new Option(`all (${all.toLocaleString('en')})`, ''), ...pairs
    .map(([name, count], at) => [new Option(`${name} (${count.toLocaleString('en')})`, at), count])
    .filter(([option, count]) => count || option.value === value).map(([option]) => option));
  select.value = value;
}

function tile(row, place) {
  const [item, button, image, words] = ['li', 'button', 'img', 'span'].map((kind) => document.createElement(kind));
  button.type = 'button';
  button.tabIndex = place ? -1 : 0;
  image.src = `thumb/${row.at}`;
  image.alt = '';
  image.loading = 'lazy';
  image.addEventListener('error', () => { image.hidden = true; });
  const lines = [row.label, `${row.split}${row.flags.length ? ` · ${row.flags.join(', ')}` : ''}`, row.file];
  words.append(...lines.map((line, at) => {
    const part = document.createElement('span');
    part.className = ['class', 'why', 'why'][at];
    part.textContent = line;
    return part;
  }));
  button.title = [row.label, row.split, row.file, row.group && `group ${row.group}`].filter(Boolean).join('\n');
  button.append(image, words);
  button.addEventListener('click', () => show(place));
  item.append(button);
  return item;
}

// -- one image --------------------------------------------------------------------------------------

async function show(place) {
  open = place;
  opened += 1;
  const mine = opened;
  const row = shown.rows[place];
  const number = shown.page * shown.size + place + 1;
  $('title').textContent = `${number.toLocaleString('en')} of ${shown.images.toLocaleString('en')}: ${row.label}`;
  $('image').removeAttribute('src');
  $('image').src = `image/${row.at}`;
  $('image').alt = row.label;
  $('decide').href = `./#item-${row.at}`;
  $('back').disabled = number === 1;
  $('next').disabled = number === shown.images;
  $('facts').replaceChildren();
  if (!$('image-dialog').open) $('image-dialog').showModal();
  try {
    const told = await ask(`item/${row.at}`);
    if (mine !== opened) return;
    const why = (told.why ?? []).map(([reason, text]) => (text ? `${reason}: ${text}` : reason)).join('; ');
    facts([...(row.group ? [['group', row.group]] : []), ...(why ? [['why', why]] : []),
      ...told.facts.filter(([name]) => name !== 'group')]);
  } catch (error) {
    if (mine === opened) facts([['error', error.message]]);
  }
}

// The image before or after, on another page where this one ends. A step that is asked for while that
// page is on its way follows it.
let stepping = Promise.resolve();
function step(places) {
  stepping = stepping.then(() => ($('image-dialog').open ? stepOnce(places) : null));
}

async function stepOnce(places) {
  const place = open + places;
  if (shown.rows[place]) { show(place); return; }
  const page = shown.page + places;
  if (page < 0 || page >= shown.pages || !(await find(page)) || !$('image-dialog').open) return;
  show(places > 0 ? 0 : shown.rows.length - 1);
}

// -- keys and filters ---------------------------------------------------------------------------------

function move(event) {
  const tiles = [...$('grid').querySelectorAll('button')];
  const at = tiles.indexOf(document.activeElement);
  const columns = getComputedStyle($('grid')).gridTemplateColumns.split(' ').length;
  const places = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
  const next = at < 0 ? tiles[0] : tiles[at + places];
  if (!next) return;
  event.preventDefault();
  for (const one of tiles) one.tabIndex = one === next ? 0 : -1;
  next.focus();
}

function turn(pages) {
  const page = shown.page + pages;
  if (page >= 0 && page < shown.pages) find(page, true);
}

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !shown) return;
  if ($('image-dialog').open) {
    const places = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (places) { event.preventDefault(); step(places); }
    return;
  }
  if (document.querySelector('dialog[open]')) return;
  if (event.target.closest('input, select')) {
    if (event.key === 'Escape') { event.preventDefault(); $('grid').querySelector('button')?.focus(); }
    return;
  }
  const action = { '/': () => $('text').focus(), n: () => turn(1), p: () => turn(-1), '?': () => $('help-dialog').showModal() }[event.key.toLowerCase()];
  if (action) { event.preventDefault(); action(); } else if (event.key.startsWith('Arrow')) move(event);
});

$('image-dialog').addEventListener('close', () => {
  opened += 1;
  $('grid').querySelectorAll('button')[open]?.focus();
});
$('back').addEventListener('click', () => step(-1));
$('next').addEventListener('click', () => step(1));
$('before').addEventListener('click', () => turn(-1));
$('after').addEventListener('click', () => turn(1));
$('help').addEventListener('click', () => $('help-dialog').showModal());
$('page').addEventListener('change', () => find(Math.min(Math.max(1, Math.trunc(+$('page').value) || 1), shown?.pages ?? 1) - 1));
$('text').addEventListener('input', () => { clearTimeout(typing); typing = setTimeout(() => find(0), 200); });
$('filters').addEventListener('submit', (event) => { event.preventDefault(); clearTimeout(typing); find(0, true); });
for (const name of CHOICES) $(name).addEventListener('change', () => find(0));
$('clear').addEventListener('click', () => {
  $('text').value = '';
  for (const name of CHOICES) $(name).value = '';
  find(0);
});

function start() {
  const before = kept();
  $('text').value = before.get('text') ?? '';
  for (const name of CHOICES) {
    const value = before.get(name);
    $(name).replaceChildren(new Option('all', ''), ...(value ? [new Option('…', value)] : []));
    $(name).value = value ?? '';
  }
  find(Math.max(0, Math.trunc(+(before.get('page') ?? 0)) || 0));
}

start();

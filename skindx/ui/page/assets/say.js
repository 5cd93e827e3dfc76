// Sentences of the catalogue, which the page holds as JSON: a key is a whole sentence, its values
// stand in braces, and the value n chooses between the forms for one and for more.
function catalogue() {
  catalogue.read ??= JSON.parse(document.querySelector(".sx-top").dataset.sentences);
  return catalogue.read;
}
const decimal = (value, digits) => value.toLocaleString(catalogue().language, digits);
function written(value) {
  if (typeof value === "number") return value.toLocaleString(catalogue().language);
  return Array.isArray(value) && value.length > 1 ? `${value.slice(0, -1).join(", ")}${catalogue().and}${value.at(-1)}` : String(value);
}
function say(key, values = {}) {
  const { one, other } = catalogue().sentences[key];
  return (one && values.n === 1 ? one : other).replace(/\{(\w+)\}/g, (_, name) => written(values[name]));
}
const sayAll = (...keys) => keys.map((key) => say(key)).join(" ");

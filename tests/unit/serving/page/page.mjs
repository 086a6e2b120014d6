// Runs the page's own script over a stand-in for the browser: `node page.mjs index.html` with a JSON list of steps on
// stdin. Prints what was sent and what the page then shows.
import fs from "fs";

const html = fs.readFileSync(process.argv[2], "utf8");
const script = html.split("<script>")[1].split("</script>")[0];
const { models, posts, set = {}, steps } = JSON.parse(fs.readFileSync(0, "utf8"));
const ids = {}, sent = [];
const pause = seconds => new Promise(done => setTimeout(done, 1000 * seconds));

function element(tag) {
  return {
    tag, value: "", textContent: "", className: "", hidden: false, checked: false, children: [], listeners: {},
    append(...more) {
      for (const one of more) typeof one === "string" ? this.textContent += one : this.children.push(one);
    },
    replaceChildren() { this.children = []; },
    addEventListener(name, listener) { this.listeners[name] = listener; },
    requestSubmit() { submit(); },
    focus() {},
    scrollIntoView() {},
  };
}

// `text`: the whole body; `events`: a stream's; `hang`: the stream stays open until it is aborted.
function response({ status = 200, text = "", events = [], hang = false }, signal) {
  const whole = events.map(event => `data: ${typeof event === "string" ? event : JSON.stringify(event)}\n\n`).join("");
  const body = new ReadableStream({
    start(control) {
      control.enqueue(new TextEncoder().encode(events.length ? whole : text));
      if (!hang) control.close();
      signal?.addEventListener("abort", () => control.error(new DOMException("aborted", "AbortError")));
    },
  });
  return new Response(body, { status });
}

async function fetch(url, { signal, body } = {}) {
  if (url === "/v1/models") return response(models.length > 1 ? models.shift() : models[0]);
  sent.push(JSON.parse(body));
  return response(posts[sent.length - 1], signal);
}

const at = name => ids[name] ??= element(name);
const submit = () => at("form").listeners.submit({ preventDefault() {} });
at("question").value = "what is 37*24?";
new Function("document", "fetch", script)({ getElementById: at, createElement: element }, fetch);
await pause(0.02);
for (const [name, values] of Object.entries(set)) Object.assign(at(name), values);
for (const step of steps) {
  if (step === "submit") submit();
  else if (step === "stop") at("stop").listeners.click();
  else if (step.try !== undefined) at("to-try").children[step.try].listeners.click();
  else at("question").listeners.keydown({ preventDefault() {}, ...step });
  await pause(0.05);
}
const shown = box => Object.fromEntries(box.children.map(part =>
  [part.className, part.tag === "ol" ? part.children.map(line => line.textContent) : part.textContent]));
const { hidden, textContent } = at("notice"), notice = hidden ? "" : textContent;
const tries = at("to-try").children.map(button => button.textContent);
console.log(JSON.stringify({ sent, panels: at("answers").children.map(shown), stop: !at("stop").hidden, notice, tries }));

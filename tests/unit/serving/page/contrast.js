// What on the page is too faint to be seen: [what, which, ratio]. WCAG 2.2 asks 4.5 of text, 3 of what bounds a control.
(() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = text => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
  const linear = part => part / 255 <= .04045 ? part / 255 / 12.92 : ((part / 255 + .055) / 1.055) ** 2.4;
  const light = ([red, green, blue]) => .2126 * linear(red) + .7152 * linear(green) + .0722 * linear(blue);
  const ratio = (one, other) => {
    const [more, less] = [light(one), light(other)].sort((a, b) => b - a);
    return (more + .05) / (less + .05);
  };
  const upwards = element => element ? [...upwards(element.parentElement), element] : [];
  const paper = colour(getComputedStyle(document.body.appendChild(Object.assign(document.createElement("i"),
    { style: "background: Canvas" }))).backgroundColor);
  document.body.lastChild.remove();
  const ground = element => upwards(element).reduce((below, one) => over(colour(getComputedStyle(one).backgroundColor), below), paper);
  const faint = [], seen = (what, element, found, least) => {
    if (found < least) faint.push([what, element.id || element.className || element.textContent, found]);
  };
  for (const element of document.querySelectorAll("body, body *")) {
    if (!element.checkVisibility() || element.matches("option, script")) continue;
    const style = getComputedStyle(element), below = ground(element), control = element.matches("input, select, textarea, button");
    const written = (text, opacity) => {
      const [red, green, blue, alpha] = colour(text);
      const shown = upwards(element).reduce((all, one) => all * getComputedStyle(one).opacity, alpha * opacity);
      return ratio(over([red, green, blue, shown], below), below);
    };
    if (control || [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) seen("text", element, written(style.color, 1), 4.5);
    const placeholder = getComputedStyle(element, "::placeholder");
    if (element.placeholder) seen("placeholder", element, written(placeholder.color, placeholder.opacity), 4.5);
    if (!control || element.type === "checkbox") continue;
    const around = ground(element.parentElement);
    seen("border", element, Math.max(ratio(over(colour(style.borderTopColor), around), around), ratio(below, around)), 3);
  }
  return faint;
})()

// What there is to see on a page: widths, pictures, contrast. An expression whose promise is waited for.
(async () => {
  const page = document.documentElement;
  for (let y = 0; y < page.scrollHeight; y += innerHeight) scrollTo(0, y); // loads what loads lazily
  const images = [...document.images].filter((i) => i.offsetParent);
  await Promise.all(images.map((i) => i.decode().catch(() => 0)));
  scrollTo(0, 0);

  // Whether an element, or one around it, scrolls by itself.
  const scrolls = (element) => {
    for (let e = element; e && e !== document.body; e = e.parentElement) {
      const style = getComputedStyle(e);
      if (style.overflowX !== "visible" || style.position === "fixed") return true;
    }
    return false;
  };
  const beyond = (e) => e.getBoundingClientRect().width > 1 && e.getBoundingClientRect().right > innerWidth + 1;
  const wide = [...document.querySelectorAll(".md-content *")].filter((e) => e.offsetParent && beyond(e) && !scrolls(e));

  // Contrast as WCAG 2.1 defines it, with colours that let what is behind shine through.
  const parse = (css) => {
    const numbers = css.match(/[\d.]+/g).map(Number);
    return { rgb: numbers.slice(0, 3), alpha: numbers.length > 3 ? numbers[3] : 1 };
  };
  const over = (front, back) => front.rgb.map((v, i) => v * front.alpha + back[i] * (1 - front.alpha));
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(parse(getComputedStyle(e).backgroundColor));
    return layers.reduce((back, front) => over(front, back), [255, 255, 255]);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (e) => {
    const back = behind(e);
    const [text, ground] = [luminance(over(parse(getComputedStyle(e).color), back)), luminance(back)];
    return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
  };
  const places = ".md-content :is(p, li, td, th, h1, h2, h3, a, code, pre span), .md-tabs a, .md-nav a, .md-footer a";
  const texts = [...document.querySelectorAll(places)].filter(
    (e) =>
      e.offsetParent &&
      !e.matches(".headerlink") &&
      [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim()),
  );
  const named = (elements) => elements.slice(0, 8).map((e) => `${e.outerHTML.slice(0, 120)} ${contrast(e).toFixed(2)}`);
  return {
    width: [page.scrollWidth, innerWidth],
    wide: named(wide),
    blank: images.filter((i) => !i.naturalWidth).map((i) => i.src),
    texts: texts.length,
    faint: named(texts.filter((e) => contrast(e) < 4.5)),
    dark: luminance(behind(document.querySelector(".md-content"))) < 0.2,
    figures: images.map((i) => i.src).filter((src) => src.includes("figures/")),
  };
})()

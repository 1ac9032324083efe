// The selection as a link. Everything that a person chose is in the part after #, so that every state can be sent, the
// back button works, and it all holds from file: too. Pure: text in, text out. The paths are in shell/views.ts.

export interface Route {
  view: string;
  /** The run, where the path names one. */
  run: string | null;
  /** Everything else by name: the other parts of the path, and what follows the question mark. */
  params: Record<string, string>;
}

/** A path such as `run/:run/step/:step`: parts with a colon are names, the others stand as they are. `*` is any path. */
export interface PathOf {
  key: string;
  path: string;
}

const dec = (text: string): string => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};
/** Like encodeURIComponent, but leaves what is harmless after # readable. */
const enc = (text: string): string =>
  encodeURIComponent(text).replace(/%(2C|3A|2F|20|40)/g, (_, h: string) => ({ '2C': ',', '3A': ':', '2F': '/', '20': '+', '40': '@' })[h]!);

const partsOf = (path: string): string[] => path.split('/').filter((p) => p !== '');

function match(pattern: string, parts: string[]): Record<string, string> | null {
  if (pattern === '*') return { path: parts.join('/') };
  const want = partsOf(pattern);
  if (want.length !== parts.length) return null;
  const found = Object.create(null) as Record<string, string>;
  for (let i = 0; i < want.length; i++) {
    if (want[i].startsWith(':')) found[want[i].slice(1)] = parts[i];
    else if (want[i] !== parts[i]) return null;
  }
  return found;
}

/** What the address names. The last of the views takes what no other does. */
export function parseRoute(hash: string, views: readonly PathOf[]): Route {
  const text = hash.replace(/^#\/?/, '');
  const cut = text.indexOf('?');
  const parts = partsOf(cut < 0 ? text : text.slice(0, cut)).map(dec);
  const params = Object.create(null) as Record<string, string>;
  if (cut >= 0) {
    for (const pair of text.slice(cut + 1).split('&')) {
      if (pair === '') continue;
      const eq = pair.indexOf('=');
      const key = dec(eq < 0 ? pair : pair.slice(0, eq));
      params[key] = eq < 0 ? '' : dec(pair.slice(eq + 1).replaceAll('+', ' '));
    }
  }
  for (const v of views) {
    const found = match(v.path, parts);
    if (!found) continue;
    const { run, ...rest } = found;
    return { view: v.key, run: run ?? null, params: Object.assign(params, rest) };
  }
  throw new Error('no view takes any path');
}

export function formatRoute(r: Route, views: readonly PathOf[]): string {
  const pattern = views.find((v) => v.key === r.view)?.path ?? '';
  const used = new Set<string>();
  // A slash inside an id must not look like a path.
  const path = partsOf(pattern).map((p) => {
    if (p === '*') {
      used.add('path');
      return partsOf(r.params.path ?? '')
        .map(encodeURIComponent)
        .join('/');
    }
    if (!p.startsWith(':')) return p;
    used.add(p.slice(1));
    return encodeURIComponent(p === ':run' ? (r.run ?? '') : (r.params[p.slice(1)] ?? ''));
  });
  const query = Object.entries(r.params)
    .filter(([k, v]) => v !== '' && !used.has(k))
    .map(([k, v]) => `${enc(k)}=${enc(v)}`)
    .join('&');
  return `#/${path.join('/')}${query === '' ? '' : `?${query}`}`;
}

/** A window of time on the timeline, in seconds since its start: `12.5,18`. */
export function parseWindow(text: string | undefined): [number, number] | null {
  const m = /^(-?[\d.]+(?:e-?\d+)?),(-?[\d.]+(?:e-?\d+)?)$/.exec(text ?? '');
  if (!m) return null;
  const [a, b] = [Number(m[1]) * 1000, Number(m[2]) * 1000];
  return Number.isFinite(a) && Number.isFinite(b) && b > a ? [a, b] : null;
}

export function formatWindow(a: number, b: number): string {
  const digits = Math.min(9, Math.max(0, Math.ceil(3 - Math.log10(Math.max(1e-9, (b - a) / 1000)))));
  const f = (ms: number): string => String(Number((ms / 1000).toFixed(digits)));
  return `${f(a)},${f(b)}`;
}

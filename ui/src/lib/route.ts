// The selection as a link. Everything that a person chose is in the part after #, so that every state can be sent, the
// back button works, and it all holds from file: too. Pure: text in, text out.

export type View = 'runs' | 'run' | 'timeline' | 'sql';

export interface Route {
  view: View;
  run: string | null;
  /** Everything else, by name. */
  params: Record<string, string>;
}

const dec = (text: string): string => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};
/** Like encodeURIComponent, but leaves what is harmless after # readable. */
const enc = (text: string): string => encodeURIComponent(text).replace(/%(2C|3A|2F|20|40)/g, (_, h: string) => ({ '2C': ',', '3A': ':', '2F': '/', '20': '+', '40': '@' })[h]!);

export function parseRoute(hash: string): Route {
  const text = hash.replace(/^#\/?/, '');
  const cut = text.indexOf('?');
  const path = (cut < 0 ? text : text.slice(0, cut)).split('/').map(dec);
  const params: Record<string, string> = Object.create(null) as Record<string, string>;
  if (cut >= 0) {
    for (const pair of text.slice(cut + 1).split('&')) {
      if (pair === '') continue;
      const eq = pair.indexOf('=');
      const key = dec(eq < 0 ? pair : pair.slice(0, eq));
      params[key] = eq < 0 ? '' : dec(pair.slice(eq + 1).replaceAll('+', ' '));
    }
  }
  if (path[0] === 'run' && path[1]) return { view: path[2] === 'timeline' ? 'timeline' : 'run', run: path[1], params };
  if (path[0] === 'sql') return { view: 'sql', run: null, params };
  return { view: 'runs', run: null, params };
}

export function formatRoute(r: Route): string {
  let path = `#/${r.view}`;
  // A slash inside a run's id must not look like a path.
  if (r.run !== null && (r.view === 'run' || r.view === 'timeline')) path = `#/run/${encodeURIComponent(r.run)}${r.view === 'timeline' ? '/timeline' : ''}`;
  const query = Object.entries(r.params)
    .filter(([, v]) => v !== '')
    .map(([k, v]) => `${enc(k)}=${enc(v)}`)
    .join('&');
  return query === '' ? path : `${path}?${query}`;
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

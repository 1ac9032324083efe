// Colours of the timeline for one theme, as the canvas keeps them.
import { NAME_COLORS, PHASES } from '../../domain/phases';
import { INSTANT, STATE, totalOf, weightOf, type Items } from './items';
import { mix, rgba, type Rgba, type Theme } from '../../base/theme';
import { SHADES } from './lines';

export interface Palette {
  /** SHADES entries per colour. */
  colors: Uint32Array;
  /** Text colour on each of them. */
  ink: string[];
  /** Colour number of an item. */
  of: (i: number) => number;
  /** By name: colour number (only when coloured by name). */
  nameColor: Uint8Array | null;
}

function shades(bases: Rgba[], theme: Theme): { colors: Uint32Array; ink: string[] } {
  const colors = new Uint32Array(bases.length * SHADES);
  const ink: string[] = [];
  bases.forEach((c, k) => {
    const set = [c, mix(theme.background, c, theme.dark ? 0.34 : 0.3), mix(theme.background, c, 0.16)];
    set.forEach((s, j) => {
      colors[k * SHADES + j] = s;
      const light = (s & 255) * 0.3 + ((s >> 8) & 255) * 0.59 + ((s >> 16) & 255) * 0.11;
      ink.push(j === 2 ? theme.faint : light > 125 ? '#0b0f14' : '#f4f7fa');
    });
  });
  return { colors, ink };
}

export function paletteOf(items: Items, theme: Theme, by: 'phase' | 'name'): Palette {
  if (by === 'phase') {
    const { phase } = items;
    return {
      ...shades(
        PHASES.map((p) => rgba(theme.dark ? p.dark : p.light)),
        theme,
      ),
      of: (i) => phase[i],
      nameColor: null,
    };
  }
  const ranked = namesByTime(items);
  const nameColor = new Uint8Array(items.names.length);
  ranked.slice(0, NAME_COLORS.length).forEach((n, k) => (nameColor[n.name] = k + 1));
  const { name } = items;
  const grey = PHASES[0];
  return {
    ...shades(
      [grey, ...NAME_COLORS].map((c) => rgba(theme.dark ? c.dark : c.light)),
      theme,
    ),
    of: (i) => nameColor[name[i]],
    nameColor,
  };
}

/** Names by the time spent under them, longest first, with the number of items. */
export function namesByTime(items: Items): { name: number; count: number; time: number }[] {
  const list = items.names.map((_, name) => ({ name, count: 0, time: 0 }));
  const { name, flags, n } = items;
  for (let i = 0; i < n; i++) {
    const e = list[name[i]];
    if (!e) continue;
    e.count += weightOf(items, i);
    if ((flags[i] & STATE) < INSTANT) e.time += totalOf(items, i);
  }
  return list.filter((e) => e.count > 0).sort((a, b) => b.time - a.time || b.count - a.count);
}

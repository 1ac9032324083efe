// The colours of the two themes, as a canvas keeps them.

/** Colours as the canvas keeps them: 0xAABBGGRR. */
export type Rgba = number;

export function mix(a: Rgba, b: Rgba, t: number): Rgba {
  const k = (t * 256) | 0;
  const rb = ((((b & 0xff00ff) - (a & 0xff00ff)) * k) >> 8) + (a & 0xff00ff);
  const g = ((((b & 0x00ff00) - (a & 0x00ff00)) * k) >> 8) + (a & 0x00ff00);
  return (0xff000000 | (rb & 0xff00ff) | (g & 0x00ff00)) >>> 0;
}

export function rgba(hex: string): Rgba {
  const n = parseInt(hex.slice(1, 7), 16);
  return (0xff000000 | ((n & 0xff) << 16) | (n & 0xff00) | (n >> 16)) >>> 0;
}
export const css = (c: Rgba): string => `rgb(${c & 255} ${(c >> 8) & 255} ${(c >> 16) & 255})`;

export interface Theme {
  dark: boolean;
  background: Rgba;
  band: Rgba;
  line: string;
  lineRgba: Rgba;
  text: string;
  textRgba: Rgba;
  dim: string;
  faint: string;
  panel: string;
  accent: string;
  bad: string;
  badRgba: Rgba;
}

export const themeOf = (dark: boolean): Theme => {
  const t = dark
    ? {
        background: '#0c0f13',
        band: '#10141a',
        line: '#222934',
        text: '#dce2ea',
        dim: '#8e99a8',
        faint: '#5c6675',
        panel: '#12161c',
        accent: '#58a6e8',
        bad: '#f0716b',
      }
    : {
        background: '#ffffff',
        band: '#f6f8fa',
        line: '#e2e5e9',
        text: '#1a2028',
        dim: '#5a6573',
        faint: '#98a1ae',
        panel: '#ffffff',
        accent: '#1f74bd',
        bad: '#c33a34',
      };
  return { ...t, dark, background: rgba(t.background), band: rgba(t.band), lineRgba: rgba(t.line), textRgba: rgba(t.text), badRgba: rgba(t.bad) };
};

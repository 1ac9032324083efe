// When alarms were on, as bars over time: one row per alarm with its labels.
import type { Episode } from '../../generated/api';
import { nsToMs } from '../../base/format';

export interface Bar {
  /** Places from 0 to 1 on the axis. */
  from: number;
  fired: number | null;
  to: number;
  episode: Episode;
}

export interface Row {
  key: string;
  alarm: string;
  labels: string;
  bars: Bar[];
}

/** Labels apart from the name, as people read them. */
export const labelText = (labels: Record<string, string>, without: readonly string[] = []): string =>
  Object.entries(labels)
    .filter(([name]) => name !== 'alertname' && !without.includes(name))
    .map(([name, value]) => `${name} ${value}`)
    .join(', ');

/** A selector that fits exactly these labels. */
export const selectorOf = (labels: Record<string, string>): string =>
  `{${Object.entries(labels)
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
    .join(',')}}`;

/** Rows in the order of their newest bar. What is still on reaches to the end. */
export function rows(episodes: readonly Episode[], fromMs: number, toMs: number, without: readonly string[] = []): Row[] {
  const place = (ms: number): number => Math.max(0, Math.min(1, (ms - fromMs) / (toMs - fromMs)));
  const out = new Map<string, Row>();
  for (const episode of episodes) {
    const start = nsToMs(episode.start_ns);
    const end = episode.open ? toMs : nsToMs(episode.end_ns);
    if (end < fromMs || start > toMs) continue;
    const key = selectorOf(episode.labels);
    let row = out.get(key);
    if (row === undefined) out.set(key, (row = { key, alarm: episode.alarm, labels: labelText(episode.labels, without), bars: [] }));
    row.bars.push({ from: place(start), fired: episode.fired_ns === null ? null : place(nsToMs(episode.fired_ns)), to: place(end), episode });
  }
  return [...out.values()];
}

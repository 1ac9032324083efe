// Metrics of runs, as the server gives them. Points come thinned to what a panel can show: a point stands for a stretch of
// the axis, with the smallest and the largest value in it.
import { api, getJson, withParams } from '../../data/http';
import type { MetricInfo, MetricsAnswer, PointSeries as Points, PointsAnswer } from '../../generated/api';

export type { MetricInfo, PointSeries as Points } from '../../generated/api';

export type Axis = 'step' | 'time' | 'tokens';

type Nullable = (number | null)[];

export async function listMetrics(run: string, signal?: AbortSignal): Promise<MetricInfo[]> {
  return (await getJson<MetricsAnswer>(api`/runs/${run}/metrics`, signal)).metrics;
}

export interface Question {
  x: Axis;
  from: number | null;
  to: number | null;
  points: number;
  /** Rises when there is something new: the same question is asked again. */
  version: number;
}

/** Bytes of names in one question; a parameter may have 4096. */
const NAME_BYTES = 2500;

interface Waiting {
  name: string;
  done: (points: Points | null) => void;
  fail: (e: Error) => void;
}

/** Collects what panels ask for within one frame and asks for it together. */
export class PointSource {
  private waiting = new Map<string, { run: string; q: Question; list: Waiting[] }>();

  ask(run: string, name: string, q: Question): Promise<Points | null> {
    const key = JSON.stringify([run, q]);
    let group = this.waiting.get(key);
    if (!group) {
      group = { run, q, list: [] };
      this.waiting.set(key, group);
      setTimeout(() => {
        const g = this.waiting.get(key)!;
        this.waiting.delete(key);
        for (const part of split(g.list)) void this.send(g.run, g.q, part);
      }, 20);
    }
    const { list } = group;
    return new Promise((done, fail) => list.push({ name, done, fail }));
  }

  private async send(run: string, q: Question, list: Waiting[]): Promise<void> {
    const names = JSON.stringify([...new Set(list.map((w) => w.name))]);
    const params = { names, x: q.x, points: q.points, from: q.from, to: q.to };
    try {
      const answer = await getJson<PointsAnswer>(withParams(api`/runs/${run}/metrics/points`, params));
      const byName = new Map(answer.series.map((s) => [s.name, s]));
      for (const w of list) w.done(byName.get(w.name) ?? null);
    } catch (e) {
      for (const w of list) w.fail(e as Error);
    }
  }
}

function split(list: Waiting[]): Waiting[][] {
  const parts: Waiting[][] = [[]];
  let bytes = 0;
  for (const w of list) {
    bytes += encodeURIComponent(w.name).length + 3;
    if (bytes > NAME_BYTES) {
      parts.push([]);
      bytes = 0;
    }
    parts[parts.length - 1].push(w);
  }
  return parts;
}

/** The part of a name by which panels are grouped: everything before the last slash. */
export const groupOf = (name: string): string => (name.includes('/') ? name.slice(0, name.lastIndexOf('/')) : '');

/** Is less better? Then the best value is the smallest. */
export const lowerIsBetter = (name: string): boolean =>
  /loss|latency|time|duration|perplexity|error|failed|retry|truncated|aborted|zero_std|repetition|staleness/i.test(name);

/** A moving average that forgets, without the pull to zero at its start. */
export function smooth(values: Nullable, weight: number): Nullable {
  if (weight <= 0) return values;
  let sum = 0;
  let norm = 0;
  return values.map((v) => {
    if (v === null) return null;
    sum = sum * weight + (1 - weight) * v;
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

import { api, getJson, sendJson } from '../../data/http';
import type { Level, LevelSet, ScrapeAnswer, TargetStatus } from '../../generated/api';

export type { TargetStatus as Target } from '../../generated/api';

export const scrapeTargets = async (signal?: AbortSignal): Promise<TargetStatus[]> => (await getJson<ScrapeAnswer>(api`/scrape`, signal)).targets;

/** Null: the level that the engines were started with. */
export const traceLevel = (signal?: AbortSignal): Promise<Level> => getJson(api`/trace-level`, signal);

export async function setTraceLevel(level: number | null, engines: boolean): Promise<LevelSet> {
  return (await (await sendJson('PUT', api`/trace-level`, { level, engines })).json()) as LevelSet;
}

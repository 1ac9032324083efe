import { api, getJson, sendJson } from '../../data/http';

/** An engine that is scraped. */
export interface Target {
  url: string;
  up: boolean | null;
  problem: string | null;
}

export const scrapeTargets = async (signal?: AbortSignal): Promise<Target[]> => (await getJson<{ targets: Target[] }>(api`/scrape`, signal)).targets;

/** Null: the level that the engines were started with. */
export interface TraceLevelAnswer {
  level: number | null;
  engines?: { url: string; problem: string | null }[];
}

export const traceLevel = (signal?: AbortSignal): Promise<TraceLevelAnswer> => getJson(api`/trace-level`, signal);

export async function setTraceLevel(level: number | null, engines: boolean): Promise<TraceLevelAnswer> {
  return (await (await sendJson('PUT', api`/trace-level`, { level, engines })).json()) as TraceLevelAnswer;
}

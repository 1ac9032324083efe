import { api, bytesOf, getJson, request, withParams, type Params } from '../../data/http';
import type { FoundTraces, TracePath, TracePoints } from '../../generated/api';
import { decode, type Held, type Trace } from './model';

export type { FoundTraces, TracePoint, TracePoints } from '../../generated/api';

export const findTraces = (params: Params, signal?: AbortSignal): Promise<FoundTraces> => getJson(withParams(api`/traces`, params), signal);
/** Only what a scatter plot needs. */
export const findPoints = (params: Params, signal?: AbortSignal): Promise<TracePoints> =>
  getJson(withParams(api`/traces`, { ...params, points: true }), signal);

export async function loadTrace(trace: string, signal?: AbortSignal): Promise<Trace> {
  return decode(await bytesOf(await request(api`/traces/${trace}/view`, { signal })));
}

export async function criticalPath(trace: string, signal?: AbortSignal): Promise<Held> {
  return { ...(await getJson<TracePath>(api`/traces/${trace}/path`, signal)), trace };
}

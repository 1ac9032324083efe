import { api, getJson, request, sendJson, withParams } from '../../data/http';
import type { AlarmsAnswer, Silence } from '../../generated/api';

/** State, and the history of the last so many hours. */
export const alarms = (hours: number, run: string | undefined, signal?: AbortSignal): Promise<AlarmsAnswer> =>
  getJson(withParams(api`/alarms`, { run, from: String(Date.now() / 1000 - hours * 3600) }), signal);

export async function addSilence(selector: string, duration: string, comment: string): Promise<Silence> {
  return (await (await sendJson('POST', api`/alarms/silences`, { selector, duration, comment })).json()) as Silence;
}

export async function endSilence(id: string): Promise<void> {
  await request(api`/alarms/silences/${id}`, { method: 'DELETE' });
}

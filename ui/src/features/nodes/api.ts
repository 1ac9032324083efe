import { api, getJson } from '../../data/http';
import type { NodesAnswer } from '../../generated/api';

export const nodes = (signal?: AbortSignal): Promise<NodesAnswer> => getJson(api`/nodes`, signal);

// What kind of work a span is, and how it is drawn. The palette is built on Okabe and Ito's, which people with the common
// kinds of colour blindness can tell apart; neighbours in a usual step also differ in lightness. Every phase has a letter
// too, so that colour is never the only sign.

export interface Phase {
  key: string;
  label: string;
  letter: string;
  dark: string;
  light: string;
}

export const PHASES: readonly Phase[] = [
  { key: 'other', label: 'other', letter: '·', dark: '#7d8590', light: '#8a929c' },
  { key: 'rollout', label: 'rollout', letter: 'R', dark: '#6f8fb5', light: '#86a3c6' },
  { key: 'generate', label: 'generate', letter: 'G', dark: '#3d8fd1', light: '#2f83c8' },
  { key: 'queue', label: 'queue', letter: 'Q', dark: '#b8a04a', light: '#b89a2e' },
  { key: 'prefill', label: 'prefill', letter: 'P', dark: '#7cc4ee', light: '#63b4e4' },
  { key: 'decode', label: 'decode', letter: 'D', dark: '#2f6fb0', light: '#1f5f9f' },
  { key: 'transfer', label: 'transfer', letter: 'K', dark: '#c58bd0', light: '#b571c2' },
  { key: 'tool', label: 'tool', letter: 'T', dark: '#e0973a', light: '#d9851c' },
  { key: 'reward', label: 'reward', letter: 'E', dark: '#35b08c', light: '#139a74' },
  { key: 'train', label: 'train', letter: 'L', dark: '#d2693c', light: '#c9541f' },
  { key: 'weight_sync', label: 'weight sync', letter: 'W', dark: '#cf7aa6', light: '#bf5b90' },
  { key: 'idle', label: 'wait', letter: 'I', dark: '#4a525c', light: '#c3c9d0' },
];

const byKey = new Map(PHASES.map((p, i) => [p.key, i]));
export const PHASE_OTHER = 0;
export const PHASE_TOOL = byKey.get('tool')!;

/** The phases that senders write, in other words. */
const SYNONYMS: Record<string, string> = {
  training: 'train',
  update: 'train',
  actor_update: 'train',
  sync: 'weight_sync',
  weights: 'weight_sync',
  weight_update: 'weight_sync',
  generation: 'generate',
  inference: 'generate',
  wait: 'idle',
  rewards: 'reward',
  verify: 'reward',
  eval: 'rollout',
  env: 'tool',
  environment: 'tool',
};

/** Names of slime, SGLang, ROLL, verl and OpenTelemetry's gen_ai. The first that fits counts. */
const BY_NAME: [RegExp, string][] = [
  [/weight|model_update|sync_model|param.*(sync|broadcast)/, 'weight_sync'],
  [/queue|_waiting|bootstrap|alloc_wait|prealloc|dispatch|prepare/, 'queue'],
  [/transfer|kv_cache|mooncake/, 'transfer'],
  [/prefill|tokenize|mm_encode/, 'prefill'],
  [/decode|spec_draft|spec_verify/, 'decode'],
  [/reward|verif|judge|grade|score/, 'reward'],
  [/tool|execute|sandbox|browser|bash|python|search|env(ironment)?[_. ]?step/, 'tool'],
  [/train|backward|optim|log_?probs?|advantage|actor|critic|ref_/, 'train'],
  [/generat|sglang|\breq\b|chat |completion|llm|\binfer/, 'generate'],
  [/idle|barrier|\bwait/, 'idle'],
  [/rollout|sample|episode|trajectory|turn|get_batch|pipeline_step/, 'rollout'],
];

export function phaseOf(name: string, said: string | null): number {
  const key = said === null ? '' : said.toLowerCase().replace(/[\s-]+/g, '_');
  const told = byKey.get(SYNONYMS[key] ?? key);
  // "rollout" is what everything in a rollout is; the name says more.
  if (told !== undefined && PHASES[told].key !== 'rollout' && told !== PHASE_OTHER) return told;
  const lower = name.toLowerCase();
  for (const [pattern, phase] of BY_NAME) if (pattern.test(lower)) return byKey.get(phase)!;
  return told ?? PHASE_OTHER;
}

export const phaseColor = (index: number, dark: boolean): string => (dark ? PHASES[index].dark : PHASES[index].light);

/** For colours by name: the most common names get one each, the rest stay grey. */
export const NAME_COLORS: readonly { dark: string; light: string }[] = [2, 7, 8, 6, 4, 9, 3, 10, 5, 1].map((i) => PHASES[i]);

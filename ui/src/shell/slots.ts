// What fills the places of domain/slots.ts. A new panel under the timeline is one component and one line here.
import type { Slots } from '../domain/slots';

/** A page that opens from disk has neither answers nor series. */
export const SLOTS: Slots = __STATIC__
  ? { panels: [], answers: null, findings: null, alarms: null }
  : {
      panels: [
        { key: 'path', title: 'Critical path', height: 62, open: true, load: () => import('../features/answers/PathPanel.svelte') },
        // On a low window the rows need the room.
        { key: 'serving', title: 'Serving engines', height: 190, open: innerHeight >= 1000, load: () => import('../features/serving/Strip.svelte') },
      ],
      answers: () => import('../features/answers/StepAnswers.svelte'),
      findings: () => import('../features/answers/RunFindings.svelte'),
      alarms: () => import('../features/alarms/RunAlarms.svelte'),
    };

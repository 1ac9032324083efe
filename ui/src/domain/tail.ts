import { TAIL_BEGINS } from '../generated/limits';

/**
 * What each sample adds to the tail: from the moment when nine of ten samples have ended (TAIL_BEGINS, as in the answers)
 * until the last ends, every moment is shared by the samples that still run. The shares add up to the length of the tail.
 */
export function tailShares(ends: ArrayLike<number>): Float64Array {
  const order = Array.from({ length: ends.length }, (_, i) => i).sort((a, b) => ends[a] - ends[b]);
  const share = new Float64Array(ends.length);
  const body = Math.ceil(order.length * TAIL_BEGINS);
  let sum = 0;
  for (let k = Math.max(1, body); k < order.length; k++) {
    sum += (ends[order[k]] - ends[order[k - 1]]) / (order.length - k);
    share[order[k]] = sum;
  }
  return share;
}

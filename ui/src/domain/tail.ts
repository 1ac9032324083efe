/**
 * What each sample adds to the tail: from the moment when half of the samples are done until the last is, every moment is
 * shared by the samples that still run. The shares add up to the length of the tail.
 */
export function tailShares(ends: ArrayLike<number>): Float64Array {
  const order = Array.from({ length: ends.length }, (_, i) => i).sort((a, b) => ends[a] - ends[b]);
  const share = new Float64Array(ends.length);
  const half = order.length >> 1;
  let sum = 0;
  for (let k = Math.max(1, half); k < order.length; k++) {
    sum += (ends[order[k]] - ends[order[k - 1]]) / (order.length - k);
    share[order[k]] = sum;
  }
  return share;
}

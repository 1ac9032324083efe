/// <reference types="svelte" />
/// <reference types="vite/client" />
declare const __STATIC__: boolean;
declare module '#worker' {
  const make: () => Worker;
  export default make;
}

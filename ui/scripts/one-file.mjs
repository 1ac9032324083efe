// Vite plugin: puts the one script and the one stylesheet of the build into index.html and names it viewer.html.
export const MARKER = '<!--ROLLSCOPE_DATA-->';

/** Script text that may stand inside a <script> element: the parser must not meet a closing tag or a comment in it. */
const inScript = (code) => code.replaceAll('</script', '<\\/script').replaceAll('<!--', '\\x3C!--');

export function oneFile() {
  return {
    name: 'one-file',
    enforce: 'post',
    generateBundle(_, bundle) {
      const page = bundle['index.html'];
      if (!page) throw new Error('one-file: the build has no index.html');
      const scripts = Object.values(bundle).filter((f) => f.type === 'chunk');
      const styles = Object.values(bundle).filter((f) => f.type === 'asset' && f.fileName.endsWith('.css'));
      if (scripts.length !== 1) throw new Error(`one-file: expected one script, got ${scripts.map((s) => s.fileName)}`);
      let html = String(page.source)
        .replace(/<script[^>]*type="module"[^>]*><\/script>\s*/g, '')
        .replace(/<link[^>]*rel="(stylesheet|modulepreload)"[^>]*>\s*/g, '');
      const css = styles
        .map((s) => String(s.source))
        .join('\n')
        .replaceAll('</style', '<\\/style');
      // Views are imported when they are shown; in one file there is nothing to load ahead for them.
      const code = scripts[0].code.replaceAll('__VITE_PRELOAD__', 'void 0');
      const head = `<style>${css}</style>\n`;
      const tail = `${MARKER}\n<script type="module">${inScript(code)}</script>\n`;
      // Functions, so that `$` in the code is not read as a pattern.
      html = html.replace('</head>', () => `${head}</head>`).replace('</body>', () => `${tail}</body>`);
      if (html.split(MARKER).length !== 2) throw new Error('one-file: the data marker must occur exactly once');
      for (const name of Object.keys(bundle)) delete bundle[name];
      this.emitFile({ type: 'asset', fileName: 'viewer.html', source: html });
    },
  };
}

// The editor: CodeMirror with what a runner's code needs.
import { defaultKeymap, history, historyKeymap, indentWithTab, isolateHistory, undo } from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { Compartment, EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, keymap, lineNumbers, placeholder } from "@codemirror/view";
import { tags as t } from "@lezer/highlight";

// Colours are the page's own variables, so a change of theme needs nothing here.
const highlighting = HighlightStyle.define([
  { tag: [t.keyword, t.modifier, t.operatorKeyword, t.controlKeyword, t.definitionKeyword, t.moduleKeyword, t.self], color: "var(--code-keyword)" },
  { tag: [t.string, t.special(t.string), t.regexp], color: "var(--code-string)" },
  { tag: [t.number, t.bool, t.null, t.atom, t.constant(t.name)], color: "var(--code-number)" },
  { tag: [t.comment, t.meta], color: "var(--code-comment)", fontStyle: "italic" },
  { tag: [t.function(t.variableName), t.function(t.propertyName), t.standard(t.name)], color: "var(--code-function)" },
  { tag: [t.definition(t.variableName), t.variableName, t.propertyName], color: "var(--code-name)" },
  { tag: [t.typeName, t.className, t.namespace], color: "var(--code-type)" },
  { tag: [t.operator, t.punctuation, t.bracket], color: "var(--code-punctuation)" },
]);

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", backgroundColor: "transparent", color: "var(--code-name)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6", overflow: "auto" },
  ".cm-content": { padding: "12px 0", caretColor: "var(--accent-text)" },
  ".cm-line": { padding: "0 16px 0 8px" },
  ".cm-gutters": { backgroundColor: "var(--surface)", border: "none", color: "var(--muted)" },
  ".cm-lineNumbers .cm-gutterElement": { padding: "0 8px 0 16px", minWidth: "40px" },
  ".cm-activeLine": { backgroundColor: "transparent" },
  "&.cm-focused .cm-activeLine": { backgroundColor: "var(--active-line)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent" },
  "&.cm-focused .cm-activeLineGutter": { color: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--accent-text)", borderLeftWidth: "2px" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--selection)" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--selection)", outline: "none" },
  ".cm-placeholder": { color: "var(--muted)" },
});

function languageOf(name: string): Extension {
  if (name === "python") return [python(), indentUnit.of("    ")];
  if (name === "typescript") return javascript({ typescript: true });
  if (name === "javascript" || name === "node") return javascript();
  if (name === "shell" || name === "bash") return StreamLanguage.define(shell);
  return [];
}

const keptStates = 20;

export interface Editor {
  readonly code: string;
  /** Shows the document of that name, with its own undo history while the page is open. */
  load(name: string, code: string, language: string): void;
  /** Replaces the code. It can be undone. */
  replace(code: string): void;
  undo(): void;
  focus(): void;
}

export interface EditorEvents {
  run(): void;
  /** Returns whether there was something to stop. */
  stop(): boolean;
  change(code: string): void;
}

export function createEditor(parent: HTMLElement, nonce: string, on: EditorEvents): Editor {
  const language = new Compartment();
  const state = (code: string, name: string) =>
    EditorState.create({
      doc: code,
      extensions: [
        EditorView.cspNonce.of(nonce),
        keymap.of([
          { key: "Mod-Enter", preventDefault: true, run: () => (on.run(), true) },
          // Not handled when nothing runs: Escape, then Tab, leaves the editor.
          { key: "Escape", run: () => on.stop() },
        ]),
        lineNumbers(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        highlightActiveLine(),
        highlightActiveLineGutter(),
        EditorState.tabSize.of(4),
        keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
        placeholder("Write code, or pick an example"),
        syntaxHighlighting(highlighting),
        look,
        EditorView.contentAttributes.of({
          "aria-label": "Code",
          "aria-describedby": "editor-help",
          tabindex: "0",
          autocapitalize: "off",
          autocorrect: "off",
          spellcheck: "false",
        }),
        EditorView.domEventHandlers({
          // Handles typing over several lines: the browser would merge them with style attributes,
          // which the policy forbids.
          beforeinput(event, view) {
            if (event.inputType !== "insertText" || !event.data || event.isComposing || view.state.selection.main.empty) return false;
            event.preventDefault();
            view.dispatch(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
            return true;
          },
        }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) on.change(update.state.doc.toString());
        }),
        language.of(languageOf(name)),
      ],
    });
  const view = new EditorView({ parent, state: state("", "") });
  const states = new Map<string, EditorState>(); // of documents that were shown before
  let shown = "";
  return {
    get code() {
      return view.state.doc.toString();
    },
    load(name, code, language) {
      states.delete(shown);
      if (shown !== "") states.set(shown, view.state);
      const oldest = states.keys().next().value;
      if (states.size > keptStates && oldest !== undefined) states.delete(oldest);
      const kept = states.get(name);
      shown = name;
      view.setState(kept?.doc.toString() === code ? kept : state(code, language));
    },
    replace(code) {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: code }, selection: { anchor: 0 }, scrollIntoView: true, annotations: isolateHistory.of("full"), userEvent: "input.replace" });
    },
    undo() {
      undo(view);
    },
    focus() {
      view.focus();
    },
  };
}

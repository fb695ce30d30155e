// A parser for event streams (text/event-stream), fed with text as it arrives.

export interface ServerEvent {
  event: string;
  data: string;
}

/**
 * Returns a function that takes the next piece of a stream and returns the events that it
 * completes.
 */
export function eventParser(): (chunk: string) => ServerEvent[] {
  let rest = "";
  let event = "";
  let data: string[] = [];
  let afterCR = false;
  return (chunk) => {
    const done: ServerEvent[] = [];
    if (afterCR && chunk.startsWith("\n")) chunk = chunk.slice(1); // the second half of a CRLF
    if (chunk !== "") afterCR = chunk.endsWith("\r");
    const lines = (rest + chunk).split(/\r\n|\r|\n/);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (data.length > 0) done.push({ event: event || "message", data: data.join("\n") });
        event = "";
        data = [];
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") event = value;
      else if (field === "data") data.push(value);
    }
    return done;
  };
}

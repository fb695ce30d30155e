// Package mediatype returns the media type of a file by its name. It is the only place that
// decides.
//
// It ignores the content, which the file's author controls, and the host's table of types, which
// differs from machine to machine.
package mediatype

import (
	"path"
	"strings"
)

// Unknown is the type of a file with an unknown extension.
const Unknown = "application/octet-stream"

var byExtension = map[string]string{
	".bash": "text/plain", ".c": "text/plain", ".cfg": "text/plain", ".conf": "text/plain", ".cpp": "text/plain", ".css": "text/css",
	".csv": "text/csv", ".go": "text/plain", ".h": "text/plain", ".htm": "text/html", ".html": "text/html", ".ini": "text/plain",
	".java": "text/plain", ".js": "text/javascript", ".log": "text/plain", ".md": "text/markdown", ".mjs": "text/javascript",
	".py": "text/x-python", ".r": "text/plain", ".rs": "text/plain", ".rst": "text/plain", ".sh": "text/x-shellscript",
	".tex": "text/plain", ".toml": "text/plain", ".ts": "text/plain", ".tsv": "text/tab-separated-values", ".tsx": "text/plain",
	".txt": "text/plain", ".ics": "text/calendar",

	".geojson": "application/geo+json", ".ipynb": "application/x-ipynb+json", ".json": "application/json",
	".jsonl": "application/x-ndjson", ".ndjson": "application/x-ndjson", ".sql": "application/sql", ".xml": "application/xml",
	".yaml": "application/yaml", ".yml": "application/yaml",

	".avif": "image/avif", ".bmp": "image/bmp", ".gif": "image/gif", ".ico": "image/vnd.microsoft.icon", ".jpeg": "image/jpeg",
	".jpg": "image/jpeg", ".png": "image/png", ".svg": "image/svg+xml", ".tif": "image/tiff", ".tiff": "image/tiff",
	".webp": "image/webp",

	".doc":  "application/msword",
	".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	".eps":  "application/postscript", ".epub": "application/epub+zip",
	".odp": "application/vnd.oasis.opendocument.presentation", ".ods": "application/vnd.oasis.opendocument.spreadsheet",
	".odt": "application/vnd.oasis.opendocument.text", ".pdf": "application/pdf", ".ppt": "application/vnd.ms-powerpoint",
	".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation", ".ps": "application/postscript",
	".rtf": "application/rtf", ".xls": "application/vnd.ms-excel",
	".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",

	".arrow": "application/vnd.apache.arrow.file", ".db": "application/vnd.sqlite3", ".feather": "application/vnd.apache.arrow.file",
	".h5": "application/x-hdf5", ".hdf5": "application/x-hdf5", ".parquet": "application/vnd.apache.parquet",
	".sqlite": "application/vnd.sqlite3", ".wasm": "application/wasm",

	".7z": "application/x-7z-compressed", ".bz2": "application/x-bzip2", ".gz": "application/gzip", ".tar": "application/x-tar",
	".tgz": "application/gzip", ".xz": "application/x-xz", ".zip": "application/zip", ".zst": "application/zstd",

	".flac": "audio/flac", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".wav": "audio/wav",
	".mov": "video/quicktime", ".mp4": "video/mp4", ".webm": "video/webm",

	".otf": "font/otf", ".ttf": "font/ttf", ".woff": "font/woff", ".woff2": "font/woff2",
}

// ByName returns the media type of a file, without parameters: "text/csv" for "a/b.CSV", [Unknown]
// for an unknown extension.
func ByName(name string) string {
	if t, ok := byExtension[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	return Unknown
}

// ContentType returns the value of an HTTP header: [ByName], and UTF-8 as the charset of text.
func ContentType(name string) string {
	t := ByName(name)
	if strings.HasPrefix(t, "text/") {
		t += "; charset=utf-8"
	}
	return t
}

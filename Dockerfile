# The server, for the docker backend: one static binary and public certificates. It starts sandboxes
# on the engine whose socket it has; see compose.yaml. Build it with: docker build -t mcp-code-sandbox .
ARG GO_BASE=golang:1.26-bookworm

FROM ${GO_BASE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# The commit of a development build; empty: a release.
ARG BUILD=devel
RUN make build BUILD="${BUILD}" BIN=/out && mkdir -p /out/tmp && chmod 1777 /out/tmp

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/tmp /tmp
COPY --from=build /out/mcp-code-sandbox /mcp-code-sandbox
ENV SANDBOX_BACKEND=docker SANDBOX_ROOT=/var/lib/mcp-code-sandbox MCP_HTTP_ADDR=:8080
EXPOSE 8080
ENTRYPOINT ["/mcp-code-sandbox"]
CMD ["serve"]

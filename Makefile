# make help lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run build test lint fuzz bench guard bench-tool web images docs clean test-environments

VERSION := $(shell cat internal/version/VERSION)
# The commit of a development build; empty on the tag of the release.
BUILD   ?= $(shell [ "$$(git describe --tags --dirty 2>/dev/null)" = "v$(VERSION)" ] || git describe --always --dirty --exclude "*" 2>/dev/null || echo devel)
LDFLAGS := -s -w -X mcp-code-sandbox/internal/version.build=$(BUILD)
GO      ?= go
AGENTS  := internal/agentbin/bin/sandbox-agent-linux-amd64 internal/agentbin/bin/sandbox-agent-linux-arm64
BIN     ?= bin
SERVER  := $(BIN)/mcp-code-sandbox
SOURCES := go.mod go.sum $(shell find cmd internal runners -type f ! -name '*_test.go' ! -name '.*' ! -path 'internal/agentbin/bin/*')
PAGE    := web/embed.go $(shell find web/dist -type f)

# Environments of the tests; see scripts/test-environments.
CACHE := $(CURDIR)/.cache
export SANDBOX_TEST_RUNNERS ?= $(CACHE)/runners
export SANDBOX_TEST_PYTHON  ?= $(CACHE)/clients/bin/python
export SANDBOX_TEST_PYTHON_SDK1 ?= $(CACHE)/clients-sdk1/bin/python

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Set everything up (Debian packages, build, language environments), then serve
	@scripts/setup run
	@$(MAKE) --no-print-directory build
	@$(SERVER) runners install || echo 'make run: continuing without what could not be prepared'
	@exec $(SERVER) serve

build: $(SERVER) ## Build bin/mcp-code-sandbox, with the agent inside
	@:

$(AGENTS): internal/agentbin/bin/sandbox-agent-linux-%: $(SOURCES)
	@echo 'building the agent for linux/$*'
	@CGO_ENABLED=0 GOOS=linux GOARCH=$* $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/sandbox-agent
	@touch $@

$(SERVER): $(SOURCES) $(PAGE) $(AGENTS)
	@echo 'building $@ $(VERSION)+$(BUILD)'
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/mcp-code-sandbox
	@touch $@

test: ## Install what the tests need, then run every test and each fuzz target briefly
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	@ENGINE_MEANWHILE='scripts/timed environments $(MAKE) --no-print-directory test-environments && scripts/timed vet $(GO) vet ./... && scripts/timed web scripts/web check' \
		scripts/engine run scripts/timed tests $(GO) test -race -count=1 -timeout 40m ./...
	@scripts/timed fuzzing scripts/fuzz 3000x

test-environments: $(SERVER)
	@scripts/test-environments

lint: ## gofmt, vet for every platform, staticcheck, shellcheck, govulncheck
	@scripts/setup lint
	@scripts/lint

bench: bench-tool ## Compare root's and an ordinary user's server with plain processes, bwrap and docker, into bench/RESULTS.md and the figures of README and docs; BENCH='-run pandas' prints a part
	@scripts/engine run $(CACHE)/bench/bench -server $(SERVER) -root $(CACHE)/bench -runners $(CACHE)/runners $(BENCH)

guard: bench-tool ## Fail if runs are slower or larger than allowed, compared with plain processes
	@$(CACHE)/bench/bench -server $(SERVER) -root $(CACHE)/bench -runners $(CACHE)/runners -guard

bench-tool:
	@scripts/setup run
	@$(MAKE) --no-print-directory build
	@SANDBOX_ROOT=$(CACHE) $(SERVER) runners install
	@$(GO) build -o $(CACHE)/bench/bench ./bench

web: ## Build the page into web/dist, which the server embeds
	@scripts/setup web
	@scripts/web build

images: ## Build the Docker images of the runners (images/build says how to change their base)
	@images/build

docs: ## Write the generated pages, docs/settings.md and docs/tools.md
	@$(GO) test ./cmd/mcp-code-sandbox -run TestDocsGenerated -update

clean: ## Remove what was built, and the environments of the tests
	scripts/engine stop
	rm -rf bin .cache integration/clients/node_modules integration/page/node_modules web/node_modules $(AGENTS)

# Every target installs what it needs and this machine lacks.
SHELL := /bin/bash
VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo dev)
GO_BUILD := CGO_ENABLED=0 go build -trimpath

.PHONY: help setup build demo up test check generate bench clean

help: ## Show this
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## Install packages, tools and the runtime
	@scripts/setup.sh check

build: ## Build paddock, the guest and the runtime into bin/
	@scripts/setup.sh run
	@$(GO_BUILD) -ldflags "-s -w -X main.version=$(VERSION)" -o bin/paddock ./cmd/paddock
	@$(GO_BUILD) -ldflags "-s -w" -o bin/paddock-guest ./cmd/paddock-guest
	@$(GO_BUILD) -o bin/pushimage ./test/pushimage

demo: build ## A real image becomes a running sandbox [IMAGE=ref] [ROLES=split]
	@IMAGE="$(IMAGE)" ROLES="$(ROLES)" scripts/demo.sh

up: build ## Run everything in one process until Ctrl-C
	@bin/paddock up

test: build ## Set up what the tests need and run all of them
	@scripts/setup.sh test
	@scripts/test.sh

check: ## Formatting, linters, generated code, modules
	@scripts/setup.sh check
	@scripts/check.sh

generate: ## Write generated code and documents anew
	@scripts/setup.sh check
	@scripts/generate.sh

bench: build ## Print the published figures
	@scripts/setup.sh bench
	@scripts/bench.sh

clean: ## Remove what was built here
	@rm -rf bin .tools .cache

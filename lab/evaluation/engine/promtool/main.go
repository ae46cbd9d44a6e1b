// Command promtool does what the tests of the rules ask of promtool, with the release that go.mod names: unit tests,
// and whether rules and a configuration load.
//
//	promtool test rules FILE...
//	promtool check rules FILE...
//	promtool check config FILE
//
// The unit tests are the release's own: they stand in a package main that cannot be imported, so
// scripts/tools/build_rule_engine.sh lays its file unittest.go over this folder. All of promtool would take forty times as
// long to build, for its service discovery of Kubernetes.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	_ "github.com/google/go-cmp/cmp" // unittest.go needs them, and go.mod must keep them
	_ "github.com/nsf/jsondiff"
	"github.com/prometheus/common/model"

	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

const (
	successExitCode = 0
	failureExitCode = 1
)

func main() {
	expressions := parser.NewParser(parser.Options{})
	// Flags, such as --lint=all, are what this does anyway.
	words := slices.DeleteFunc(os.Args[1:], func(word string) bool {
		return strings.HasPrefix(word, "--") && word != "--version"
	})
	command, files := words, []string(nil)
	if len(words) > 2 {
		command, files = words[:2], words[2:]
	}
	var err error
	switch strings.Join(command, " ") {
	case "--version":
		fmt.Printf("promtool, version %s\n", version())
	case "test rules":
		os.Exit(RulesUnitTest(promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true},
			expressions, nil, false, false, false, files...))
	case "check rules":
		for _, file := range files {
			err = errors.Join(err, checkRules(file, expressions))
		}
	case "check config":
		for _, file := range files {
			err = errors.Join(err, checkConfig(file, expressions))
		}
	default:
		err = errors.New("want test rules, check rules, check config or --version, and files")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(failureExitCode)
	}
}

// version is that of the server: module v0.315.0 is release 3.15.0.
func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/prometheus/prometheus" {
			var number, patch int
			if _, err := fmt.Sscanf(module.Version, "v0.%d.%d", &number, &patch); err == nil {
				return fmt.Sprintf("%d.%d.%d", number/100, number%100, patch)
			}
		}
	}
	return "unknown"
}

// checkRules loads a file of rules, in which none may stand twice.
func checkRules(file string, expressions parser.Parser) error {
	content, problems := rulefmt.ParseFile(file, false, model.UTF8Validation, expressions, slog.New(slog.DiscardHandler))
	if problems != nil {
		return fmt.Errorf("%s: %w", file, errors.Join(problems...))
	}
	seen := map[string]bool{}
	var err error
	for _, group := range content.Groups {
		for _, rule := range group.Rules {
			key := rule.Record + rule.Alert + labels.FromMap(rule.Labels).String()
			if seen[key] {
				err = errors.Join(err, fmt.Errorf("%s: %s stands twice", file, key))
			}
			seen[key] = true
		}
	}
	return err
}

// checkConfig loads a configuration and the rules that it names.
func checkConfig(file string, expressions parser.Parser) error {
	content, err := config.LoadFile(file, false, slog.New(slog.DiscardHandler))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, pattern := range content.RuleFiles {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			return fmt.Errorf("%s: no rules at %s", file, pattern)
		}
		for _, rules := range found {
			if err := checkRules(rules, expressions); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseTime reads the start of a test, which none of ours gives.
func parseTime(text string) (time.Time, error) {
	return time.Parse(time.RFC3339Nano, text)
}

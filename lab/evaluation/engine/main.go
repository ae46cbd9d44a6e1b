// Command laggard-rule-engine evaluates Prometheus rule files over samples in virtual time, with Prometheus' own rule
// manager, PromQL engine and storage, and prints the alerts that begin and stop to fire.
//
//	laggard-rule-engine [-seed N] [-ask EXPR] [-blocks FOLDER] RULES.yml... < SAMPLES > EVENTS
//
// Hours pass in seconds, every time alike: each group is evaluated at its own moment of the interval, as a server does,
// but the moments follow from the seed. The form of SAMPLES and EVENTS stands in stream.go.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math"
	"os"
	"runtime"
	"sort"
	"syscall"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

func main() {
	runtime.LockOSThread()
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "laggard-rule-engine: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	seed := flag.Int("seed", 0, "decides at which moments of their interval the groups are evaluated")
	ask := flag.String("ask", "", "an expression to print with every frame of run 0, to look closer")
	blocks := flag.String("blocks", "", "a folder for all series, also the recorded ones and ALERTS: any Prometheus serves it")
	lookback := flag.Duration("lookback", 5*time.Minute, "Prometheus' lookback")
	flag.Parse()

	folder, err := os.MkdirTemp("", "laggard-rule-engine-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	database, err := open(folder)
	if err != nil {
		return err
	}
	defer database.Close()

	expressions := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 50_000_000, Timeout: 2 * time.Minute, LookbackDelta: *lookback,
		EnableAtModifier: true, EnableNegativeOffset: true, Parser: expressions,
	})
	meter := newMeter()
	query := meter.around(rules.EngineQueryFunc(engine, database))
	input, err := newReader(bufio.NewReaderSize(os.Stdin, 1<<20))
	if err != nil {
		return err
	}
	output := newWriter(os.Stdout)
	defer output.flush()

	clock, err := load(flag.Args(), *seed, query, database, expressions, meter)
	if err != nil {
		return err
	}
	for {
		frame, err := input.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		clock.advance(frame.time, output)
		if err := input.store(frame, database); err != nil {
			return err
		}
		if *ask != "" && frame.run == 0 {
			if err := output.answer(frame.time, *ask, query); err != nil {
				return err
			}
		}
	}
	clock.end(output)
	if *blocks != "" {
		return database.Snapshot(*blocks, true)
	}
	return nil
}

// open makes an empty database without a log on disk, which nothing compacts.
func open(folder string) (*tsdb.DB, error) {
	options := tsdb.DefaultOptions()
	options.WALSegmentSize = -1
	options.RetentionDuration = 0
	database, err := tsdb.Open(folder, slog.New(slog.DiscardHandler), nil, options, nil)
	if err != nil {
		return nil, err
	}
	database.DisableCompactions()
	return database, nil
}

// moment is when a group is evaluated next, in milliseconds.
type moment struct {
	group *rules.Group
	next  int64
}

// timetable evaluates each group when its time has come.
type timetable struct {
	seed    int
	moments []moment
	started bool
	last    int64
	first   int64
	firing  map[*rules.AlertingRule]map[uint64]labels.Labels
	failed  map[string]string
	spent   time.Duration
	longest time.Duration
	count   int
	// By group and rule, in the order of the files.
	costs []ruleCost
	place map[rules.Rule]int
	meter *meter
	// Evaluations that took longer than the interval of their group: a server would have left the next one out.
	late int
}

func load(
	files []string, seed int, query rules.QueryFunc, database storage.Appendable, expressions parser.Parser, meter *meter,
) (*timetable, error) {
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: query, Appendable: database, Context: context.Background(), Parser: expressions,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
	})
	groups, errs := manager.LoadGroups(15*time.Second, labels.EmptyLabels(), "", nil, false, files...)
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	clock := &timetable{
		seed: seed, firing: map[*rules.AlertingRule]map[uint64]labels.Labels{}, failed: map[string]string{},
		place: map[rules.Rule]int{}, meter: meter,
	}
	for _, group := range groups {
		clock.moments = append(clock.moments, moment{group: group})
		for _, rule := range group.Rules() {
			clock.place[rule] = len(clock.costs)
			clock.costs = append(clock.costs, ruleCost{
				Group: group.Name(), Rule: rule.Name(), Interval: group.Interval().Seconds(), Labels: rule.Labels().Map(),
			})
			if alert, ok := rule.(*rules.AlertingRule); ok {
				alert.SetRestored(true)
				clock.firing[alert] = map[uint64]labels.Labels{}
			}
		}
	}
	return clock, nil
}

// advance evaluates what is due before a time.
func (c *timetable) advance(until int64, output *writer) {
	if !c.started {
		c.begin(until)
	}
	cycle := time.Duration(0)
	for len(c.moments) > 0 && c.moments[0].next < until {
		due := &c.moments[0]
		now, before := time.Now(), threadSeconds()
		due.group.Eval(context.Background(), time.UnixMilli(due.next).UTC())
		took := time.Since(now)
		// The rule manager tells by the clock; on a machine that others use too, part of that is theirs.
		share := min(1, (threadSeconds()-before)/took.Seconds())
		cycle += took
		if took > due.group.Interval() {
			c.late++
		}
		c.count++
		for _, rule := range due.group.Rules() {
			cost := &c.costs[c.place[rule]]
			cost.Seconds += rule.GetEvaluationDuration().Seconds() * share
			cost.Allocated += c.meter.taken(rule)
			cost.Evaluations++
		}
		c.report(due.group, due.next, output)
		due.next += due.group.Interval().Milliseconds()
		c.sort()
	}
	c.spent += cycle
	c.longest = max(c.longest, cycle)
	c.last = until
}

// begin sets each group's first moment.
func (c *timetable) begin(start int64) {
	c.started, c.first = true, start
	for i := range c.moments {
		group := c.moments[i].group
		hash := fnv.New64a()
		fmt.Fprintf(hash, "%d %s", c.seed, group.Name())
		c.moments[i].next = start + int64(hash.Sum64()%uint64(group.Interval().Milliseconds()))
	}
	c.sort()
}

func (c *timetable) sort() {
	sort.Slice(c.moments, func(i, j int) bool {
		a, b := c.moments[i], c.moments[j]
		return a.next < b.next || a.next == b.next && a.group.Name() < b.group.Name()
	})
}

// report says which alerts of a group began or ceased to fire, and which rules failed.
func (c *timetable) report(group *rules.Group, now int64, output *writer) {
	for _, rule := range group.Rules() {
		if err := rule.LastError(); err != nil && c.failed[rule.Name()] == "" {
			c.failed[rule.Name()] = err.Error()
			output.event(event{Time: now, State: "failed", Labels: map[string]string{"rule": rule.Name()}, Error: err.Error()})
		}
		alert, ok := rule.(*rules.AlertingRule)
		if !ok {
			continue
		}
		before, firing := c.firing[alert], map[uint64]labels.Labels{}
		for _, active := range alert.ActiveAlerts() {
			if active.State != rules.StateFiring {
				continue
			}
			key := active.Labels.Hash()
			firing[key] = active.Labels
			if _, known := before[key]; !known {
				output.event(event{
					Time: now, State: "firing", Labels: active.Labels.Map(), Annotations: active.Annotations.Map(),
					Value: finite(active.Value), Since: active.ActiveAt.UnixMilli(),
				})
			}
		}
		for key, old := range before {
			if _, still := firing[key]; !still {
				output.event(event{Time: now, State: "resolved", Labels: old.Map()})
			}
		}
		c.firing[alert] = firing
	}
}

// end says what the evaluation cost.
func (c *timetable) end(output *writer) {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) == nil {
		output.event(event{Time: c.last, State: "end", Cost: &cost{
			ProcessSeconds: seconds(usage.Utime) + seconds(usage.Stime), RuleSeconds: c.spent.Seconds(),
			LongestCycleSeconds: c.longest.Seconds(), Groups: c.count,
			VirtualSeconds: float64(c.last-c.first) / 1000, MaximumResidentKilobytes: usage.Maxrss,
			LateEvaluations: c.late, Rules: c.costs,
		}})
	}
}

// threadSeconds is the processor time of the thread that evaluates the rules.
func threadSeconds() float64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_THREAD, &usage) != nil {
		return 0
	}
	return seconds(usage.Utime) + seconds(usage.Stime)
}

func seconds(value syscall.Timeval) float64 {
	return float64(value.Sec) + float64(value.Usec)/1e6
}

func finite(value float64) float64 {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return 0
	}
	return value
}

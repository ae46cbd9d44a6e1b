package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
)

// The input begins with a line of JSON, {"runs": [3, 2]}: how many series each run has. A line for each series
// follows: name, then label and value in turn, between tabs. After these come frames, little-endian: the time in
// milliseconds (int64), the run (int64) and one float64 for each of its series. NaN is no sample, Prometheus' own
// NaN the mark that a failed scrape leaves.

type head struct {
	Runs []int `json:"runs"`
}

type frame struct {
	time int64
	run  int
}

type reader struct {
	input      *bufio.Reader
	series     [][]labels.Labels
	references [][]storage.SeriesRef
	buffer     []byte
}

func newReader(input *bufio.Reader) (*reader, error) {
	line, err := input.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("no input: %w", err)
	}
	var given head
	if err := json.Unmarshal(line, &given); err != nil {
		return nil, fmt.Errorf("first line: %w", err)
	}
	made := &reader{input: input}
	builder := labels.NewScratchBuilder(8)
	for _, count := range given.Runs {
		series := make([]labels.Labels, count)
		for i := range series {
			text, err := input.ReadString('\n')
			if err != nil {
				return nil, fmt.Errorf("series %d of %d: %w", i, count, err)
			}
			parts := strings.Split(strings.TrimSuffix(text, "\n"), "\t")
			builder.Reset()
			builder.Add("__name__", parts[0])
			for j := 1; j+1 < len(parts); j += 2 {
				builder.Add(parts[j], parts[j+1])
			}
			builder.Sort()
			series[i] = builder.Labels()
		}
		made.series = append(made.series, series)
		made.references = append(made.references, make([]storage.SeriesRef, count))
	}
	return made, nil
}

// next reads the head of a frame and its values, which store then takes.
func (r *reader) next() (frame, error) {
	var start [16]byte
	if _, err := io.ReadFull(r.input, start[:]); err != nil {
		return frame{}, err
	}
	found := frame{
		time: int64(binary.LittleEndian.Uint64(start[:8])), run: int(binary.LittleEndian.Uint64(start[8:])),
	}
	if found.run < 0 || found.run >= len(r.series) {
		return frame{}, fmt.Errorf("frame of run %d; there are %d runs", found.run, len(r.series))
	}
	size := 8 * len(r.series[found.run])
	if cap(r.buffer) < size {
		r.buffer = make([]byte, size)
	}
	r.buffer = r.buffer[:size]
	if _, err := io.ReadFull(r.input, r.buffer); err != nil {
		return frame{}, fmt.Errorf("frame at %d ms is cut off: %w", found.time, err)
	}
	return found, nil
}

// store appends the values of the frame that was read last.
func (r *reader) store(given frame, database storage.Appendable) error {
	const stale = 0x7ff0000000000002
	appender := database.Appender(context.Background())
	references := r.references[given.run]
	for i, series := range r.series[given.run] {
		bits := binary.LittleEndian.Uint64(r.buffer[8*i:])
		value := math.Float64frombits(bits)
		if math.IsNaN(value) && bits != stale {
			continue
		}
		reference, err := appender.Append(references[i], series, given.time, value)
		if err != nil {
			return fmt.Errorf("%s at %d ms: %w", series, given.time, err)
		}
		references[i] = reference
	}
	return appender.Commit()
}

// event is one line of the output.
type event struct {
	Time        int64             `json:"time_ms"`
	State       string            `json:"state"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Value       float64           `json:"value,omitempty"`
	Since       int64             `json:"since_ms,omitempty"`
	Error       string            `json:"error,omitempty"`
	Cost        *cost             `json:"cost,omitempty"`
}

type cost struct {
	ProcessSeconds           float64    `json:"process_seconds"`
	RuleSeconds              float64    `json:"rule_seconds"`
	LongestCycleSeconds      float64    `json:"longest_cycle_seconds"`
	VirtualSeconds           float64    `json:"virtual_seconds"`
	Groups                   int        `json:"groups"`
	MaximumResidentKilobytes int64      `json:"maximum_resident_kilobytes"`
	LateEvaluations          int        `json:"late_evaluations"`
	Rules                    []ruleCost `json:"rules"`
}

// ruleCost is what the evaluations of a rule took in all.
type ruleCost struct {
	Group       string            `json:"group"`
	Rule        string            `json:"rule"`
	Labels      map[string]string `json:"labels,omitempty"`
	Interval    float64           `json:"interval"`
	Seconds     float64           `json:"seconds"`
	Allocated   uint64            `json:"allocated_bytes"`
	Evaluations int               `json:"evaluations"`
}

type writer struct {
	output  *bufio.Writer
	encoder *json.Encoder
}

func newWriter(output io.Writer) *writer {
	buffered := bufio.NewWriter(output)
	return &writer{output: buffered, encoder: json.NewEncoder(buffered)}
}

func (w *writer) event(each event) {
	_ = w.encoder.Encode(each)
}

// answer prints the result of an expression.
func (w *writer) answer(now int64, expression string, query rules.QueryFunc) error {
	result, err := query(context.Background(), expression, time.UnixMilli(now))
	if err != nil {
		return err
	}
	for _, sample := range result {
		w.event(event{Time: now, State: "answer", Labels: sample.Metric.Map(), Value: finite(sample.F)})
	}
	return nil
}

func (w *writer) flush() {
	_ = w.output.Flush()
}

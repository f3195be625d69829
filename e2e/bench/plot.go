// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// plots draws change latency and cold start against the number of Services.
func (r *report) plots(dir string) error {
	for _, name := range []string{"change_p50", "cold_start"} {
		i := slices.IndexFunc(r.figures, func(f figure) bool { return f.name == name })
		if err := r.plot(r.figures[i], filepath.Join(dir, name+".svg")); err != nil {
			return fmt.Errorf("plot of %s: %w", name, err)
		}
	}
	return nil
}

// plotted is the number of endpoints per Service of the rows that make a line.
const plotted = 3

func (r *report) plot(f figure, file string) error {
	p := plot.New()
	p.Title.Text = f.title
	p.X.Label.Text, p.Y.Label.Text = fmt.Sprintf("Services, %d endpoints each", plotted), "seconds"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	var lines []any
	for _, k := range []lab.ProxyKind{lab.NFTProxy, lab.KubeProxy} {
		if xy := r.line(f, k); len(xy) > 0 {
			lines = append(lines, string(k), xy)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	p.Add(plotter.NewGrid())
	if err := plotutil.AddLinePoints(p, lines...); err != nil {
		return err
	}
	// Room around, which a single row does not make by itself; a logarithm has no zero.
	p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
	p.Y.Min, p.Y.Max = p.Y.Min/2, p.Y.Max*5
	return p.Save(6*vg.Inch, 4*vg.Inch, file)
}

// line is a figure of one proxy against the number of Services.
func (r *report) line(f figure, k lab.ProxyKind) plotter.XYs {
	var xy plotter.XYs
	for _, row := range r.rows {
		if v := row.value(f, k); row.endpoints == plotted && v > 0 {
			xy = append(xy, plotter.XY{X: float64(row.services), Y: v})
		}
	}
	slices.SortFunc(xy, func(a, b plotter.XY) int { return int(a.X - b.X) })
	return xy
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plots draws change latency and cold start against the number of Services, each in a file and both side by side in plot.svg.
func (r *report) plots(dir string) error {
	var both []*plot.Plot
	for _, name := range []string{"change_p50", "cold_start"} {
		all := r.figures()
		f := all[slices.IndexFunc(all, func(f figure) bool { return f.name == name })]
		p, err := r.plot(f)
		if err != nil {
			return fmt.Errorf("plot of %s: %w", name, err)
		}
		if p == nil {
			continue
		}
		both = append(both, p)
		if err := p.Save(6*vg.Inch, 4*vg.Inch, filepath.Join(dir, name+".svg")); err != nil {
			return fmt.Errorf("plot of %s: %w", name, err)
		}
	}
	return sideBySide(both, filepath.Join(dir, "plot.svg"))
}

// sideBySide draws plots in one file.
func sideBySide(plots []*plot.Plot, file string) error {
	if len(plots) == 0 {
		return nil
	}
	const (
		width, height = 5 * vg.Inch, 3.6 * vg.Inch
		margin        = 6 * vg.Millimeter / 2
	)
	canvas := vgsvg.New(width*vg.Length(len(plots)), height)
	all := draw.New(canvas)
	all.SetColor(color.White) // the margins too: pages may be dark
	all.Fill(all.Rectangle.Path())
	for k, p := range plots {
		left, right := width*vg.Length(k)+margin, -width*vg.Length(len(plots)-1-k)-margin
		p.Draw(draw.Crop(all, left, right, margin, -margin))
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(out); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// plotted is the number of endpoints per Service of the rows that make a line.
const plotted = 3

// plot is nil without figures.
func (r *report) plot(f figure) (*plot.Plot, error) {
	p := plot.New()
	title, _, _ := strings.Cut(f.title, ":")
	p.Title.Text = title
	p.X.Label.Text = fmt.Sprintf("Services, %d endpoints each", plotted)
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.TickerFunc(secondTicks)
	p.Legend.Top, p.Legend.Left = true, true
	lines := map[string]plotter.XYs{}
	for _, who := range []peer{ours, nftables, iptables} {
		if xy := r.line(f, who.name); len(xy) > 0 {
			lines[who.name] = xy
		}
	}
	if len(lines) == 0 {
		return nil, nil
	}
	p.Add(plotter.NewGrid())
	if err := addLines(p, lines); err != nil {
		return nil, err
	}
	// Room around, which a single row does not make by itself; a logarithm has no zero.
	p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
	p.Y.Min, p.Y.Max = p.Y.Min/2, p.Y.Max*5
	return p, nil
}

// addLines adds the proxies' lines with points, and a legend.
func addLines(p *plot.Plot, lines map[string]plotter.XYs) error {
	for i, who := range []peer{ours, nftables, iptables} {
		if lines[who.name] == nil {
			continue
		}
		line, points, err := plotter.NewLinePoints(lines[who.name])
		if err != nil {
			return err
		}
		line.Color, line.Width, line.Dashes = plotutil.Color(i), vg.Points(2), plotutil.Dashes(i)
		points.Color, points.Shape, points.Radius = plotutil.Color(i), plotutil.Shape(i), vg.Points(4)
		p.Add(line, points)
		p.Legend.Add(who.name, line, points)
	}
	return nil
}

// secondTicks are logarithmic ticks with times as people write them.
func secondTicks(low, high float64) []plot.Tick {
	ticks := plot.LogTicks{Prec: -1}.Ticks(low, high)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = seconds.text(t.Value)
		}
	}
	return ticks
}

// line is a figure of one proxy against the number of Services.
func (r *report) line(f figure, name string) plotter.XYs {
	var xy plotter.XYs
	for _, row := range r.rows {
		if v := row.value(f, name); row.matrix() && row.endpoints == plotted && v > 0 {
			xy = append(xy, plotter.XY{X: float64(row.services), Y: v})
		}
	}
	slices.SortFunc(xy, func(a, b plotter.XY) int { return int(a.X - b.X) })
	return xy
}

// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package draw

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"unicode/utf8"
)

// Measures in pixels. Text is monospaced, so that its width is known without the font: its characters are 0.6 of the size
// wide, 0.602 in DejaVu Sans Mono.
const (
	fontSize  = 12.0
	charWidth = fontSize * 0.602
	lineStep  = 17.0
	padding   = 9.0
	boxGap    = 12.0
	columnGap = 92.0
	margin    = 26.0
	bandGap   = 26.0
	headStep  = 24.0
	zoneHead  = 20.0
)

// rect is where something is drawn.
type rect struct{ x, y, w, h float64 }

// left and right are where edges end and begin.
func (r rect) left() (x, y float64)  { return r.x, r.y + r.h/2 }
func (r rect) right() (x, y float64) { return r.x + r.w, r.y + r.h/2 }

// layout is where the parts of a band are.
type layout struct {
	band                    *Band
	rect                    // with the heading
	fronts, programs, nodes []rect
	zones                   []rect // without area where there is no frame
}

func textWidth(lines []string) (w float64) {
	for _, l := range lines {
		w = max(w, float64(utf8.RuneCountInString(l))*charWidth)
	}
	return w
}

// size is that of a box; the heading is bold and a little wider.
func (b *Box) size() (w, h float64) {
	return textWidth(b.Lines)*1.02 + 2*padding, float64(len(b.Lines))*lineStep + 2*padding - 4
}

// column puts boxes below each other at x; y is that of the first.
func column(boxes []Box, x, y, width float64) (out []rect, bottom float64) {
	for i := range boxes {
		_, h := boxes[i].size()
		out = append(out, rect{x, y, width, h})
		y += h + boxGap
	}
	return out, y - boxGap
}

// columnSize is the width of the widest box and the height of all.
func columnSize(boxes []Box) (width, height float64) {
	for i := range boxes {
		w, h := boxes[i].size()
		width, height = max(width, w), height+h+boxGap
	}
	return width, height - boxGap
}

// arrange lays a band out from y downwards. Columns are as wide as in the other bands, so that they are aligned.
func (b *Band) arrange(y float64, widths [3]float64) layout {
	l := layout{band: b}
	head := headStep + float64(len(b.Problems))*lineStep
	_, hf := columnSize(b.Fronts)
	_, hp := columnSize(b.Programs)
	hz := b.zonesHeight()
	height := max(hf, hp, hz, 0)
	top := y + head
	x := margin + padding
	l.fronts, _ = column(b.Fronts, x, top+(height-hf)/2, widths[0])
	x += widths[0] + columnGap
	l.programs, _ = column(b.Programs, x, top+(height-hp)/2, widths[1])
	x += widths[1] + columnGap
	zy := top + (height-hz)/2
	for i := range b.Zones {
		z := &b.Zones[i]
		inner := zy
		if z.Name != "" {
			inner += zoneHead
		}
		nodes, bottom := column(z.Nodes, x+padding, inner, widths[2]-2*padding)
		frame := rect{}
		if z.Name != "" {
			bottom += padding
			frame = rect{x, zy, widths[2], bottom - zy}
		}
		l.nodes, l.zones = append(l.nodes, nodes...), append(l.zones, frame)
		zy = bottom + boxGap
	}
	l.rect = rect{margin, y, 0, head + height + padding}
	return l
}

func (b *Band) zonesHeight() (h float64) {
	for _, z := range b.Zones {
		_, inner := columnSize(z.Nodes)
		if z.Name != "" {
			inner += zoneHead + padding
		}
		h += inner + boxGap
	}
	return h - boxGap
}

// widths are those of the columns that all bands share.
func (p *Picture) widths() (out [3]float64) {
	for i := range p.Bands {
		b := &p.Bands[i]
		w, _ := columnSize(b.Fronts)
		out[0] = max(out[0], w)
		w, _ = columnSize(b.Programs)
		out[1] = max(out[1], w)
		for _, z := range b.Zones {
			w, _ = columnSize(z.Nodes)
			out[2] = max(out[2], w+2*padding, textWidth([]string{"zone " + z.Name})+2*padding)
		}
	}
	return out
}

const style = `text{font-family:"DejaVu Sans Mono","Liberation Mono",Menlo,Consolas,monospace;font-size:12px;fill:#202124}
.title{font-size:18px;font-weight:bold}.note{fill:#5f6368}.head{font-weight:bold}.problem{fill:#b3261e}
.band{fill:#fafbfc;stroke:#dadce0}.front{fill:#e8f0fe;stroke:#8ab4f8}.program{fill:#f1f3f4;stroke:#9aa0a6}
.refuses{fill:#fce8e6;stroke:#d93025}.zone{fill:#e6f4ea;stroke:#a8dab5}.node{fill:#fff;stroke:#9aa0a6}
.own{fill:#fff;stroke:#188038;stroke-width:2}.edge{fill:none;stroke:#80868b;stroke-width:1.4}.dashed{stroke-dasharray:5 4}`

// SVG writes the picture as a document of its own.
func (p *Picture) SVG(w io.Writer) error {
	widths := p.widths()
	y := margin + 18
	notesAt := y
	y += float64(len(p.Notes))*lineStep + 16
	var layouts []layout
	for i := range p.Bands {
		l := p.Bands[i].arrange(y, widths)
		layouts = append(layouts, l)
		y += l.h + bandGap
	}
	inner := widths[0] + widths[1] + widths[2] + 2*columnGap + 2*padding
	for i := range p.Bands {
		inner = max(inner, textWidth(append([]string{p.Bands[i].Title}, p.Bands[i].Problems...))*1.02+2*padding)
	}
	inner = max(inner, textWidth(p.Notes), textWidth([]string{p.Title})*1.5)
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" role="img">`+"\n",
		inner+2*margin, y, inner+2*margin, y)
	fmt.Fprintf(out, "<title>%s</title>\n<style>%s</style>\n", escape(p.Title), style)
	fmt.Fprint(out, `<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">`+
		`<path d="M0 0L8 4L0 8z" fill="#80868b"/></marker></defs>`+"\n"+`<rect width="100%" height="100%" fill="#fff"/>`+"\n")
	text(out, margin, notesAt, "title", p.Title)
	for i, note := range p.Notes {
		text(out, margin, notesAt+float64(i+1)*lineStep+4, "note", note)
	}
	for i := range layouts {
		layouts[i].w = inner
		layouts[i].draw(out)
	}
	fmt.Fprintln(out, "</svg>")
	return out.Flush() // with the first error
}

// draw writes a band: frame, edges below boxes, boxes.
func (l *layout) draw(out *bufio.Writer) {
	frame(out, l.rect, "band")
	text(out, l.x+padding, l.y+16, "head", l.band.Title)
	for i, problem := range l.band.Problems {
		text(out, l.x+padding, l.y+16+float64(i+1)*lineStep, "problem", problem)
	}
	n := 0
	for i, z := range l.band.Zones {
		if z.Name != "" {
			frame(out, l.zones[i], "zone")
			text(out, l.zones[i].x+padding, l.zones[i].y+14, "note", "zone "+z.Name)
		}
	}
	for _, e := range l.band.Edges {
		l.edge(out, e)
	}
	for i, b := range l.band.Fronts {
		b.draw(out, l.fronts[i], "front")
	}
	for i, b := range l.band.Programs {
		class := "program"
		if b.Refuses {
			class = "refuses"
		}
		b.draw(out, l.programs[i], class)
	}
	for _, z := range l.band.Zones {
		for _, b := range z.Nodes {
			class := "node"
			if b.Own {
				class = "own"
			}
			b.draw(out, l.nodes[n], class)
			n++
		}
	}
}

func (l *layout) edge(out *bufio.Writer, e Edge) {
	var from, to rect
	if e.FromFront {
		from, to = l.fronts[e.From], l.programs[e.To]
	} else {
		from, to = l.programs[e.From], l.nodes[e.To]
	}
	x1, y1 := from.right()
	x2, y2 := to.left()
	class := "edge"
	if e.Dashed {
		class += " dashed"
	}
	bend := (x2 - x1) / 2
	fmt.Fprintf(out, `<path class="%s" marker-end="url(#to)" d="M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f"/>`+"\n",
		class, x1, y1, x1+bend, y1, x2-bend, y2, x2, y2)
}

func (b *Box) draw(out *bufio.Writer, r rect, class string) {
	frame(out, r, class)
	for i, line := range b.Lines {
		class := "line"
		if i == 0 {
			class = "head"
		}
		text(out, r.x+padding, r.y+padding+9+float64(i)*lineStep, class, line)
	}
}

func frame(out *bufio.Writer, r rect, class string) {
	fmt.Fprintf(out, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="6"/>`+"\n", class, r.x, r.y, r.w, r.h)
}

func text(out *bufio.Writer, x, y float64, class, s string) {
	fmt.Fprintf(out, `<text class="%s" x="%.1f" y="%.1f" xml:space="preserve">%s</text>`+"\n", class, x, y, escape(s))
}

func escape(s string) string {
	var b escaped
	_ = xml.EscapeText(&b, []byte(s)) // cannot fail
	return string(b)
}

type escaped []byte

func (e *escaped) Write(p []byte) (int, error) { *e = append(*e, p...); return len(p), nil }

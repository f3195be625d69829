// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"math"
)

// model is a value that is linear in the number of Services and of endpoints.
type model struct{ fixed, service, endpoint float64 }

func (m model) at(p sample) float64 { return m.fixed + m.service*p.services + m.endpoint*p.endpoints }

// fit is the model with the least sum of squares of relative errors: sizes span three orders of magnitude, and each is to be met
// equally well. Coefficients that would be negative are left out, as nothing becomes less with size.
func fit(points []sample) (model, error) {
	use := [3]bool{true, true, true}
	for {
		c, err := solve(points, use)
		if err != nil {
			return model{}, err
		}
		worst := -1
		for i, v := range c {
			if v < 0 && (worst < 0 || v < c[worst]) {
				worst = i
			}
		}
		if worst < 0 {
			return model{c[0], c[1], c[2]}, nil
		}
		use[worst] = false
	}
}

// errPoints says that the points do not determine what is asked for.
var errPoints = errors.New("too few sizes, or too alike, for a model")

// solve solves the normal equations of the coefficients in use.
func solve(points []sample, use [3]bool) (c [3]float64, err error) {
	var a [3][4]float64
	for _, p := range points {
		if p.value <= 0 {
			continue // nothing can be relative to it
		}
		// Of a size of 1 to 1e6, so that the three are comparable when one is eliminated.
		x := [3]float64{1 / p.value, p.services / p.value, p.endpoints / p.value}
		for i := range 3 {
			for j := range 3 {
				a[i][j] += x[i] * x[j]
			}
			a[i][3] += x[i]
		}
	}
	for i := range 3 {
		if !use[i] {
			a[i] = [4]float64{}
			for j := range 3 {
				a[j][i] = 0
			}
			a[i][i] = 1
		}
	}
	return eliminate(a)
}

// eliminate is Gauss' elimination with the largest pivot, relative to its row.
func eliminate(a [3][4]float64) (c [3]float64, err error) {
	const singular = 1e-9
	var scale [3]float64
	for i := range 3 {
		scale[i] = math.Sqrt(a[i][i])
		if scale[i] == 0 {
			return c, errPoints
		}
	}
	for i := range 3 {
		for j := range 3 {
			a[i][j] /= scale[i] * scale[j] // a unit diagonal: coefficients are of very different sizes
		}
		a[i][3] /= scale[i]
	}
	for i := range 3 {
		best := i
		for j := i + 1; j < 3; j++ {
			if math.Abs(a[j][i]) > math.Abs(a[best][i]) {
				best = j
			}
		}
		if math.Abs(a[best][i]) < singular {
			return c, errPoints
		}
		a[i], a[best] = a[best], a[i]
		for j := range 3 {
			if j != i {
				f := a[j][i] / a[i][i]
				for k := range 4 {
					a[j][k] -= f * a[i][k]
				}
			}
		}
	}
	for i := range 3 {
		c[i] = a[i][3] / a[i][i] / scale[i]
	}
	return c, nil
}

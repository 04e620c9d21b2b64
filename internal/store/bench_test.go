package store_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

// BenchmarkUpdate adds one row in each transaction.
func BenchmarkUpdate(b *testing.B) {
	for _, db := range databases {
		for _, clients := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/%d", db.name, clients), func(b *testing.B) {
				s := open(b, db.fresh(b))
				ctx := context.Background()
				var n atomic.Int64
				b.ResetTimer()
				b.SetParallelism(max(1, clients/2)) // of two processors
				if clients == 1 {
					for b.Loop() {
						add(ctx, b, s, n.Add(1))
					}
				} else {
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							add(ctx, b, s, n.Add(1))
						}
					})
				}
				b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "updates/s")
			})
		}
	}
}

func add(ctx context.Context, b *testing.B, s *store.Store, n int64) {
	if err := s.Update(ctx, func(tx *store.Tx) error {
		_, err := sandboxdb.AddSandbox(ctx, tx, sandbox.Sandbox{ID: sandbox.ID(fmt.Sprintf("i%024x", n))})
		return err
	}); err != nil {
		b.Error(err)
	}
}

package auth_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

func key(t *testing.T, secret config.Secret, salt, use string, thing ...string) auth.TicketKey {
	t.Helper()
	k, err := auth.NewTicketKey(secret, salt, use, thing...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestTickets(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	k := key(t, "shared", "row", auth.ForDownload, "rfs-1", "sum")
	good := k.Ticket(now.Add(time.Minute))
	if err := k.Check(good, now, "it"); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(good, "+/=&? ") {
		t.Errorf("%q needs quoting in a URL", good)
	}
	if err := auth.ParseTicketKey(k.Reveal()).Check(good, now, "it"); err != nil {
		t.Errorf("the key that was handed on: %v", err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(good[4:])
	if err != nil {
		t.Fatal(err)
	}
	later := append([]byte{}, raw...)
	later[7]++ // one second more
	for name, c := range map[string]struct {
		key    auth.TicketKey
		ticket string
		now    time.Time
		want   *fault.Code
	}{
		"at its end":      {k, good, now.Add(time.Minute), fault.TokenExpired},
		"long after":      {k, good, now.Add(24 * time.Hour), fault.TokenExpired},
		"none":            {k, "", now, fault.TokenRejected},
		"the row's token": {k, "row", now, fault.TokenRejected},
		"another form":    {k, "pt2." + good[4:], now, fault.TokenRejected},
		"cut":             {k, good[:len(good)-2], now, fault.TokenRejected},
		"longer":          {k, good + "AA", now, fault.TokenRejected},
		"prolonged":       {k, "pt1." + base64.RawURLEncoding.EncodeToString(later), now, fault.TokenRejected},
		"another secret":  {key(t, "other", "row", auth.ForDownload, "rfs-1", "sum"), good, now, fault.TokenRejected},
		"made void":       {key(t, "shared", "row 2", auth.ForDownload, "rfs-1", "sum"), good, now, fault.TokenRejected},
		"another use":     {key(t, "shared", "row", auth.ForPeers, "rfs-1", "sum"), good, now, fault.TokenRejected},
		"another thing":   {key(t, "shared", "row", auth.ForDownload, "rfs-2", "sum"), good, now, fault.TokenRejected},
		"other bytes":     {key(t, "shared", "row", auth.ForDownload, "rfs-1", "sum2"), good, now, fault.TokenRejected},
		"no key":          {auth.TicketKey{}, good, now, fault.TokenRejected},
		"no key, no word": {auth.ParseTicketKey("zz"), auth.TicketKey{}.Ticket(now.Add(time.Hour)), now, fault.TokenRejected},
	} {
		if err := c.key.Check(c.ticket, c.now, "it"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want.Name)
		}
	}
}

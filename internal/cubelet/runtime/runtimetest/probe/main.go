// Command probe is what the tests run inside a sandbox: one small program with
// no library, so that an image of it is made in a moment.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	args := append(os.Args[1:], "", "", "")
	if err := run(args[0], args[1], args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(what, first, second string) error {
	switch what {
	case "echo":
		fmt.Println(strings.Join(os.Args[2:], " "))
	case "complain":
		fmt.Fprintln(os.Stderr, first)
	case "exit":
		os.Exit(number(first))
	case "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case "where":
		dir, err := os.Getwd()
		fmt.Println(dir, os.Getuid())
		return err
	case "cat":
		return cat(first)
	case "copy":
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	case "change":
		return change()
	case "count":
		return count(first)
	case "same":
		a, err1 := os.Stat(first)
		b, err2 := os.Stat(second)
		fmt.Println(os.SameFile(a, b))
		return errors.Join(err1, err2)
	case "terminal":
		return terminal()
	case "list":
		entries, err := os.ReadDir(first)
		for _, e := range entries {
			fmt.Println(e.Name())
		}
		return err
	case "fill":
		return fill(first, number(second))
	case "allocate":
		return allocate(number(first))
	case "spin":
		spin(time.Duration(number(first)) * time.Millisecond)
	case "fork":
		return fork(number(first))
	case "files":
		var limit syscall.Rlimit
		err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
		fmt.Println(limit.Max)
		return err
	case "dial":
		dial(first)
	case "serve":
		return serve(first)
	case "answer":
		return answer(first, time.Duration(number(second))*time.Millisecond)
	case "flood":
		return flood(first, number(second))
	case "sleep":
		wait(time.Duration(number(first)) * time.Second)
	default:
		return fmt.Errorf("no such probe: %q", what)
	}
	return nil
}

// answer serves HTTP: 503 for a while, then what the path says.
func answer(address string, after time.Duration) error {
	fmt.Println("warming up")
	began := time.Now()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case time.Since(began) < after:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		case r.URL.Path == "/asked" && (r.Header.Get("X-Asked") != "yes" || r.Host != "app.example"):
			http.Error(w, strings.Repeat("no ", 1<<16), http.StatusForbidden)
		case r.URL.Path == "/silent":
			<-r.Context().Done()
		}
	})
	return (&http.Server{Addr: address, ReadHeaderTimeout: time.Minute}).ListenAndServe()
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return n
}

func cat(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, f)
	return errors.Join(err, f.Close())
}

// fill writes a file of that many MiB and says how far it came.
func fill(path string, mib int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i)
	}
	for n := range mib {
		if _, err := f.Write(block); err != nil {
			if errors.Is(err, syscall.ENOSPC) {
				fmt.Printf("ENOSPC after %d MiB\n", n)
			}
			return errors.Join(err, f.Close())
		}
	}
	fmt.Println("written")
	return f.Close()
}

// allocate takes memory and touches all of it.
func allocate(mib int) error {
	var held [][]byte
	for range mib {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	fmt.Println("allocated", len(held))
	return nil
}

// spin counts for a time and says how many thousand rounds it came to.
func spin(span time.Duration) {
	n := 0
	for end := time.Now().Add(span); time.Now().Before(end); {
		n++
	}
	fmt.Println(n / 1000)
}

func fork(n int) error {
	for i := range n {
		c := exec.Command("/proc/self/exe", "sleep", "60")
		if err := c.Start(); err != nil {
			fmt.Printf("refused after %d\n", i)
			return err
		}
	}
	fmt.Println("forked", n)
	wait(time.Minute)
	return nil
}

// dial says in one word how a connection went.
func dial(address string) {
	c, err := net.DialTimeout("tcp", address, 2*time.Second)
	var timeout net.Error
	switch {
	case err == nil:
		_ = c.Close() // it was opened, which is all that was asked
		fmt.Println("connected")
	case errors.Is(err, syscall.ECONNREFUSED):
		fmt.Println("refused")
	case errors.As(err, &timeout) && timeout.Timeout():
		fmt.Println("timeout")
	default:
		fmt.Println(err)
	}
}

func serve(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_, _ = io.WriteString(c, "hello\n") // the other side may be gone again
		_ = c.Close()
	}
}

// flood writes that many MiB to a file, however long it takes.
func flood(path string, mib int) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	block := []byte(strings.Repeat(strings.Repeat("x", 127)+"\n", 8192))
	for range mib {
		if _, err := f.Write(block); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

// wait sleeps, and reaps whatever is left to it as a first process.
func wait(d time.Duration) {
	ended := make(chan os.Signal, 16)
	signal.Notify(ended, syscall.SIGCHLD)
	after := time.After(d)
	for {
		select {
		case <-after:
			return
		case <-ended:
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}

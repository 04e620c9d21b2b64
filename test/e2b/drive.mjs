// Drives one sandbox with E2B's own client, as its users do. Go starts it, and
// says by the environment where the sandbox is.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { pathToFileURL } from 'node:url'

const e2b = await import(pathToFileURL(join(process.env.E2B_MODULES, 'e2b/dist/index.mjs')))
const { Sandbox } = e2b

let sbx
before(async () => { sbx = await Sandbox.create('any') })
after(async () => {
  const again = await Sandbox.connect(sbx.sandboxId)
  assert.equal(await again.isRunning(), true)
  assert.equal(await sbx.kill(), true)
})

// until waits for something that the sandbox does by itself.
async function until(what, holds) {
  const late = Date.now() + 60_000
  while (!(await holds())) {
    assert.ok(Date.now() < late, `it never happened that ${what}`)
    await new Promise((r) => setTimeout(r, 20))
  }
}

const rejects = (promise, error, message) => assert.rejects(promise, (e) => {
  assert.ok(e instanceof error, `${e.constructor.name}: ${e.message}`)
  if (message) assert.match(e.message, message)
  return true
})

test('a command tells its output and its end', async () => {
  const seen = { out: '', err: '' }
  const r = await sbx.commands.run('echo out; echo err >&2', { onStdout: (s) => { seen.out += s }, onStderr: (s) => { seen.err += s } })
  assert.deepEqual([r.exitCode, r.stdout, r.stderr, seen.out, seen.err], [0, 'out\n', 'err\n', 'out\n', 'err\n'])
})

test('a command that fails is a CommandExitError', async () => {
  await assert.rejects(sbx.commands.run('echo said; exit 7'), (e) => {
    assert.ok(e instanceof e2b.CommandExitError)
    assert.deepEqual([e.exitCode, e.stdout], [7, 'said\n'])
    return true
  })
  await assert.rejects(sbx.commands.run('no-such-command'), (e) => e.exitCode === 127)
})

test('user, directory and variables', async () => {
  const run = async (cmd, o) => (await sbx.commands.run(cmd, o)).stdout.trim()
  assert.equal(await run('echo $(id -un) $HOME $PWD'), 'user /home/user /home/user')
  assert.equal(await run('echo $(id -u) $HOME', { user: 'root' }), '0 /root')
  assert.equal(await run('pwd', { cwd: '/tmp' }), '/tmp')
  assert.equal(await run('echo $GIVEN $FROM $E2B_SANDBOX', { envs: { GIVEN: 'by the call' } }), 'by the call create true')
  await rejects(sbx.commands.run('true', { user: 'stranger' }), e2b.AuthenticationError, /invalid username: 'stranger'/)
  await rejects(sbx.commands.run('true', { cwd: '/no/such' }), e2b.InvalidArgumentError, /cwd '\/no\/such' does not exist/)
})

test('a command over its time is a TimeoutError, and ends', async () => {
  await rejects(sbx.commands.run('exec sleep 3987', { timeoutMs: 1000 }), e2b.TimeoutError)
  await until('it ended', async () => !(await sbx.commands.list()).some((p) => p.args.join(' ').includes('3987')))
})

test('in the background: list, connect, input, kill', async () => {
  const first = await sbx.commands.run('while read -r line; do echo "got $line"; done; echo end', { background: true, stdin: true })
  const listed = (await sbx.commands.list()).find((p) => p.pid === first.pid)
  assert.equal(listed.cmd, '/bin/bash')
  assert.deepEqual(listed.args.slice(0, 2), ['-l', '-c'])
  let heard = ''
  const second = await sbx.commands.connect(first.pid, { onStdout: (s) => { heard += s } })
  await sbx.commands.sendStdin(first.pid, 'one\n')
  await first.sendStdin('two\n')
  await until('both are heard', () => heard.includes('got two'))
  await sbx.commands.closeStdin(first.pid)
  assert.equal((await first.wait()).stdout, 'got one\ngot two\nend\n')
  assert.match((await second.wait()).stdout, /end/)

  const sleeper = await sbx.commands.run('sleep 4000', { background: true })
  await sleeper.disconnect()
  assert.ok((await sbx.commands.list()).some((p) => p.pid === sleeper.pid), 'it went with its caller')
  assert.equal(await sbx.commands.kill(sleeper.pid), true)
  await until('it is gone', async () => !(await sbx.commands.list()).some((p) => p.pid === sleeper.pid))
  assert.equal(await sbx.commands.kill(sleeper.pid), false)
  const killed = await sbx.commands.run('sleep 4000', { background: true })
  assert.equal(await killed.kill(), true)
  await assert.rejects(killed.wait(), e2b.CommandExitError)
  await rejects(sbx.commands.connect(4_000_000), e2b.SandboxError)
})

test('much output comes whole', async () => {
  const r = await sbx.commands.run('head -c 8000000 /dev/zero | tr "\\0" x')
  assert.equal(r.stdout.length, 8_000_000)
})

test('many at once', async () => {
  const all = await Promise.all(Array.from({ length: 24 }, (_, n) => sbx.commands.run(`echo ${n}`)))
  assert.deepEqual(all.map((r) => Number(r.stdout)), Array.from({ length: 24 }, (_, n) => n))
})

test('a terminal: size, input, connect, kill', async () => {
  let text = ''
  const onData = (b) => { text += new TextDecoder().decode(b) }
  const pty = await sbx.pty.create({ cols: 91, rows: 31, onData, timeoutMs: 0, envs: { GIVEN: 'here' }, cwd: '/tmp' })
  const type = (s) => sbx.pty.sendInput(pty.pid, new TextEncoder().encode(s))
  await type('stty size; echo "<$TERM $GIVEN $PWD>"\n')
  await until('it answers', () => text.includes('31 91') && text.includes('<xterm-256color here /tmp>'))
  await sbx.pty.resize(pty.pid, { cols: 77, rows: 22 })
  await type('stty size\n')
  await until('the new size is told', () => text.includes('22 77'))
  let other = ''
  const joined = await sbx.pty.connect(pty.pid, { onData: (b) => { other += new TextDecoder().decode(b) } })
  await type('echo to-$((1+1))-both\n')
  await until('both hear it', () => text.includes('to-2-both') && other.includes('to-2-both'))
  await joined.disconnect()
  await type('exit 3\n')
  await assert.rejects(pty.wait(), (e) => e instanceof e2b.CommandExitError && e.exitCode === 3)
  const next = await sbx.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 })
  assert.equal(await sbx.pty.kill(next.pid), true)
  await assert.rejects(next.wait())
  assert.equal(await sbx.pty.kill(next.pid), false)
})

test('files: write, read, exists, info, list, rename, remove', async () => {
  const info = await sbx.files.write('dir/a.txt', 'häl\u0000lo')
  assert.deepEqual([info.path, info.name, info.type], ['/home/user/dir/a.txt', 'a.txt', 'file'])
  assert.equal(await sbx.files.read('dir/a.txt'), 'häl\u0000lo')
  assert.deepEqual(await sbx.files.read('~/dir/a.txt', { format: 'bytes' }), new TextEncoder().encode('häl\u0000lo'))
  assert.equal(await (await sbx.files.read('dir/a.txt', { format: 'blob' })).text(), 'häl\u0000lo')
  assert.equal(await sbx.files.exists('dir/a.txt'), true)
  assert.equal(await sbx.files.exists('dir/b.txt'), false)
  const got = await sbx.files.getInfo('dir/a.txt')
  assert.deepEqual([got.type, got.size, got.permissions, got.owner, got.group, got.mode], ['file', 7, '-rw-r--r--', 'user', 'user', 0o644])
  assert.ok(got.modifiedTime instanceof Date)
  assert.equal(await sbx.files.makeDir('dir/sub/deep'), true)
  assert.equal(await sbx.files.makeDir('dir/sub/deep'), false)
  await sbx.files.write([{ path: 'dir/sub/1', data: 'one' }, { path: 'dir/sub/2', data: new Blob(['two']) }])
  assert.deepEqual((await sbx.files.list('dir')).map((e) => [e.name, e.type]), [['a.txt', 'file'], ['sub', 'dir']])
  assert.deepEqual((await sbx.files.list('dir', { depth: 2 })).map((e) => e.path.slice('/home/user/dir/'.length)), ['a.txt', 'sub', 'sub/1', 'sub/2', 'sub/deep'])
  await sbx.commands.run('ln -s a.txt dir/link')
  assert.equal((await sbx.files.getInfo('dir/link')).symlinkTarget, '/home/user/dir/a.txt')
  assert.equal((await sbx.files.rename('dir/a.txt', 'dir/moved/b.txt')).path, '/home/user/dir/moved/b.txt')
  await sbx.files.remove('dir')
  await sbx.files.remove('dir')
  assert.equal(await sbx.files.exists('dir'), false)
  await sbx.files.write('/root/mine', 'x', { user: 'root' })
  assert.equal((await sbx.files.getInfo('/root/mine')).owner, 'root')
})

test('what goes wrong with files has its class', async () => {
  await rejects(sbx.files.read('none'), e2b.FileNotFoundError)
  await rejects(sbx.files.list('none'), e2b.FileNotFoundError)
  await rejects(sbx.files.getInfo('none'), e2b.FileNotFoundError)
  await rejects(sbx.files.rename('none', 'other'), e2b.FileNotFoundError)
  await rejects(sbx.files.watchDir('none', () => {}), e2b.FileNotFoundError)
  await rejects(sbx.files.read('/tmp'), e2b.InvalidArgumentError)
  await rejects(sbx.files.read('x', { user: 'stranger' }), e2b.AuthenticationError)
  await sbx.files.write('plain', 'x')
  await rejects(sbx.files.makeDir('plain'), e2b.InvalidArgumentError)
  await rejects(sbx.files.list('plain'), e2b.InvalidArgumentError)
  await rejects(sbx.files.write('full', new Blob([new Uint8Array(48 << 20)])), e2b.NotEnoughSpaceError)
  assert.equal(await sbx.files.exists('full'), false)
})

test('a big file goes in and out', async () => {
  const data = randomBytes(20 << 20)
  await sbx.files.write('big', new Blob([data]))
  const sum = createHash('sha256')
  for await (const part of await sbx.files.read('big', { format: 'stream' })) sum.update(part)
  assert.equal(sum.digest('hex'), createHash('sha256').update(data).digest('hex'))
  assert.equal((await sbx.files.getInfo('big')).size, data.length)
  await sbx.files.remove('big')
})

test('metadata, gzip and octets', async () => {
  await sbx.files.write('plain', 'x'.repeat(10_000), { gzip: true, useOctetStream: true })
  assert.equal((await sbx.files.read('plain', { gzip: true })).length, 10_000)
})

test('a directory is watched', async () => {
  await sbx.files.makeDir('watched')
  const seen = []
  let ended
  const handle = await sbx.files.watchDir('watched', (e) => { seen.push(`${e.type} ${e.name}`) }, { recursive: true, onExit: (e) => { ended = [e] } })
  await sbx.files.write('watched/sub/f', 'x')
  await until('the file is told', () => seen.includes('create sub/f'))
  await sbx.files.rename('watched/sub/f', 'watched/g')
  await until('the rename is told', () => seen.includes('rename sub/f') && seen.includes('create g'))
  await sbx.commands.run('chmod 600 watched/g; rm watched/g')
  await until('the end is told', () => seen.includes('chmod g') && seen.includes('remove g'))
  await handle.stop()
  await until('the watch ended', () => ended)
})

test('signed addresses of files', async () => {
  const write = await sbx.uploadUrl('signed', { useSignatureExpiration: 600 })
  const form = new FormData()
  form.append('file', new Blob(['by form']), 'signed')
  assert.equal((await fetch(write, { method: 'POST', body: form })).status, 200)
  const read = await sbx.downloadUrl('signed', { useSignatureExpiration: 600 })
  assert.equal(await (await fetch(read)).text(), 'by form')
  for (const [url, message] of [
    [read.replace(/signature=[^&]*/, 'signature=v1_x'), 'invalid signature'],
    [read.replace(/signature=[^&]*&?/, ''), 'missing signature query parameter'],
    [await sbx.downloadUrl('signed', { useSignatureExpiration: -600 }), 'signature is already expired'],
  ]) {
    const answer = await fetch(url)
    assert.deepEqual([answer.status, (await answer.json()).message], [401, message])
  }
})

test('a wrong token is an AuthenticationError', async () => {
  const other = new Sandbox({ sandboxId: sbx.sandboxId, envdVersion: '0.6.4', envdAccessToken: 'wrong' })
  await rejects(other.commands.run('true'), e2b.AuthenticationError)
  await rejects(other.files.read('plain'), e2b.AuthenticationError)
  assert.equal(await other.isRunning(), true)
})

test('who is not root sees nothing of the guest', async () => {
  const lines = (await sbx.commands.run('id -u; for f in environ mem maps; do cat /proc/1/$f 2>/dev/null | tr "\\0" "\\n"; done; ls /proc/1/fd /proc/1/cwd/ 2>/dev/null | head -n 0; ls -l /proc/1/fd 2>/dev/null | grep -c -- "->"; ls /proc/self/fd; true')).stdout.trim().split('\n')
  assert.deepEqual(lines, ['1000', '0', '0', '1', '2', '3'])
  assert.doesNotMatch((await sbx.commands.run('cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; env', { user: 'root' })).stdout, new RegExp(process.env.E2B_TEST_TOKEN))
})

test('figures', async () => {
  const answer = await fetch(`${process.env.E2B_SANDBOX_URL}/metrics`, { headers: { 'X-Access-Token': process.env.E2B_TEST_TOKEN } })
  const m = await answer.json()
  assert.ok(m.cpu_count > 0 && m.mem_total > 0 && m.mem_used > 0 && m.disk_total > 0 && m.disk_used > 0, JSON.stringify(m))
  assert.equal((await fetch(`${process.env.E2B_SANDBOX_URL}/metrics`)).status, 401)
})

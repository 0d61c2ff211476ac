#!/usr/bin/env python3
"""The page, used in Chromium as a person would.

usage: page_test.py fake OPTIONS [PATTERN] | cluster BIN [PATTERN]

fake     against fake_server.py: what a real cluster shows seldom or slowly; OPTIONS: the program page_request_options
cluster  against `troupe serve` of the folder BIN, with the demo's model

PATTERN: only tests whose name contains it.

Ends with 77, and says so, where Chromium, its driver or python3-selenium is missing.
"""
import base64
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'python'))
from browser import Browser, what_is_missing  # noqa: E402
from fake_server import FakeServer, options_of, png  # noqa: E402
from holds import Holds  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TROUPE = ''  # the command
OPTIONS = {}  # what GET /api/v1/options answers
VIEWS = ('#paint', '#cluster', '#jobs', '#jobs/12', '#metrics')
# The selects that are narrower than what they say.
CUT_SELECTS = '''for (const part of document.querySelectorAll("main details")) part.open = true;
return [...document.querySelectorAll("main select")].filter((select) => select.offsetWidth > 0)
  .filter((select) => {
    const twin = select.cloneNode();
    twin.append(new Option(select.selectedOptions[0]?.text));
    twin.style.cssText = "position: absolute; width: auto";
    select.after(twin);
    const wanted = twin.offsetWidth;
    twin.remove();
    return wanted > select.offsetWidth;
  }).map((select) => select.name)'''
AS_ASKED = '''return matchMedia(`(width: ${arguments[0]}px)`).matches
  && matchMedia("(prefers-color-scheme: dark)").matches === arguments[1]'''
EVIL = '<img src=x onerror="document.title=\'broken in\'"><script>alert(1)</script>'


class FakeTest(unittest.TestCase):
    """One fake server per test. The browser is everybody's: another server is another origin, with its own storage."""
    settings = {}
    browser = None

    @classmethod
    def setUpClass(cls):
        FakeTest.browser = FakeTest.browser or Browser()

    def setUp(self):
        self.server = FakeServer(OPTIONS, seconds_per_task=0.02, **self.settings)
        self.cluster = self.server.cluster
        self.addCleanup(self.server.lose)
        self.browser.dark(False)
        self.browser.resize(1280, 900)
        self.browser.open(self.server.url)
        self.addCleanup(lambda: self.assertEqual(self.browser.complaints(), []))

    def another_person(self):
        browser = Browser()
        self.addCleanup(browser.close)
        return browser

    def jobs(self):
        return list(self.cluster.jobs.values())


class Paint(FakeTest):
    def test_a_picture_grows_and_comes(self):
        browser = self.browser
        self.cluster.hold(3)
        browser.paint('a red circle', method='pipefusion', seed='7')
        browser.until_text('Step 3 of', '.stage')
        first = browser.until(lambda: browser.run('return document.querySelector("img.preview")?.src'), 'there is no preview')
        self.cluster.hold(6)
        grown = 'return document.querySelector("img.preview").src !== arguments[0]'
        browser.until(lambda: browser.run(grown, first), 'the preview does not grow')
        self.cluster.release()
        browser.until(browser.has_picture, 'the picture does not come')
        browser.until_text('Painted in')
        browser.until_text('Seed 7; pp 4', '.stage')
        request = self.jobs()[0].request
        self.assertEqual((request['seed'], request['method'], request['num_pipeline_patch'], request['parallel']),
                         (7, 'pipefusion', 4, 'auto'))
        self.assertEqual(len(browser.all('.gallery li')), 1)

    def test_cancel(self):
        self.cluster.hold(1)
        self.browser.paint('something slow')
        self.browser.button('Cancel').click()
        self.browser.until_text('Cancelled by you')
        self.assertEqual(self.jobs()[0].state, 'cancelled')
        self.browser.driver.refresh()
        self.browser.until_text('Cancelled by you')
        self.browser.paint('another one', seed='9', size='other', width='96', height='64')
        self.browser.until(lambda: len(self.jobs()) == 2, 'nothing is painted')
        self.cluster.cancel(self.jobs()[1])
        self.browser.until_text('Cancelled: cancelled by a client')
        self.browser.type('[name=prompt]', 'something else')
        self.browser.type('[name=seed]', '1')
        self.browser.button('Use these settings').click()
        values = self.browser.run('return ["prompt", "seed", "width"].map((name) => document.querySelector(`[name=${name}]`).value)')
        self.assertEqual(values, ['another one', '9', '96'])

    def test_a_reload_keeps_the_form(self):
        browser = self.browser
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, 'first.png')
            file.write_bytes(png(16, 16, 1, 1))
            browser.fill('half a thought', steps='7', method='pipefusion', sharing='hand', pp='2', sampler='euler')
            browser.run('document.querySelector("[name=clean_caption]").click()')
            browser.find('[name=init_image]').send_keys(str(file))
        browser.driver.refresh()
        browser.until_text('first.png has to be chosen again')
        kept = ('prompt', 'steps', 'method', 'num_pipeline_patch', 'pp', 'sharing', 'sampler')
        values = browser.run('return arguments[0].map((name) => document.querySelector(`[name=${name}]`).value)', kept)
        self.assertEqual(values, ['half a thought', '7', 'pipefusion', '4', '2', 'hand', 'euler'])
        self.assertTrue(browser.run('return document.querySelector("[name=clean_caption]").checked'))
        self.assertTrue(browser.find('[name=num_pipeline_patch]').is_displayed())
        self.assertTrue(browser.run('return document.querySelector("[name=pp]").closest("[hidden]") === null'))

    def test_options_of_the_command_line_are_fields_here(self):
        browser = self.browser
        browser.find('form')
        browser.run('for (const part of document.querySelectorAll("details")) part.open = true')
        labels = [label.text for label in browser.all('form label')]
        self.assertLessEqual({'K,V', 'Eta (η)', 'VAE tiling', 'Sampler'}, set(labels))
        browser.until_text('default: as “Guidance”', '#field-guidance_scale_2-hint')
        browser.paint('a circle', size='other', width='64', height='65')
        browser.until_text('is not a multiple of 16; see “Patches”', '#field-height-wrong')
        self.cluster.hold(1)
        browser.paint('a circle', height='64')
        browser.until(lambda: self.jobs(), 'nothing is painted')
        self.jobs()[0].warnings = ['old values may show; `method` exact uses none (`troupe start --max-batch 1`)']
        self.cluster.release()
        told = 'old values may show; “Method” exact uses none (`troupe start --max-batch 1`)'
        browser.until_text(told, '.stage')
        browser.until(browser.has_picture, 'the picture does not come')
        browser.open(self.server.url + '#jobs/1')
        browser.driver.refresh()
        browser.until_text(told, '.stage')

    def test_on_a_telephone_the_picture_is_seen_after_paint(self):
        browser = self.browser
        browser.resize(400, 780)
        self.cluster.hold(3)
        browser.paint('a lighthouse in a storm')
        seen = """const box = document.querySelector(arguments[0])?.getBoundingClientRect();
            return box && box.height > 0 && box.top >= 0 && box.bottom <= innerHeight"""
        for part in ('.stage h1', '.stage progress', '.stage img.preview', '.stage button'):
            browser.until(lambda: browser.run(seen, part), f'{part} is not in view')
        self.cluster.release()
        browser.until(browser.has_picture, 'the picture does not come')
        browser.until(lambda: browser.run(seen, '.pictures img'), 'the picture is not in view')

    def test_a_reload_in_the_middle_loses_nothing(self):
        browser = self.browser
        self.cluster.hold(3)
        browser.paint('a blue square')
        browser.until_text('Step 3 of', '.stage')
        browser.driver.refresh()
        browser.until_text('a blue square', '.stage')
        browser.find('img.preview')
        self.cluster.release()
        browser.until(browser.has_picture, 'the picture does not come after a reload')
        self.assertEqual(len(self.jobs()), 1)

    def test_two_people(self):
        other = self.another_person()
        other.open(self.server.url)
        self.browser.paint('mine')
        other.paint('yours')
        for browser, own, foreign in ((self.browser, 'mine', 'yours'), (other, 'yours', 'mine')):
            browser.until(browser.has_picture, 'the picture does not come')
            self.assertIn(own, browser.text('.gallery'))
            self.assertNotIn(foreign, browser.text('.gallery'))
            browser.open(self.server.url + '#jobs')
            browser.until_text(foreign, 'table')
            browser.until_text(own, 'table')

    def test_a_lost_server_is_shown_and_found_again(self):
        browser = self.browser
        self.cluster.hold(1)
        browser.paint('a patient picture')
        browser.until_text('Step 1 of', '.stage')
        self.server.lose()
        browser.until_text('Connection lost', '#connection')
        asked = self.server.asked_in_vain
        browser.until(lambda: self.server.asked_in_vain > asked + 1, 'the page does not try again')
        self.cluster.release()
        self.server.find()
        browser.until(lambda: not browser.find('#connection').is_displayed(), 'the connection stays lost')
        browser.until(browser.has_picture, 'the picture does not come after the loss')

    def test_a_refusal_stands_beside_its_field(self):
        browser = self.browser
        browser.find('form')
        browser.button('Paint').click()
        browser.until_text('Say what to paint', '#field-prompt-wrong')
        browser.paint('a circle', steps='0')
        browser.until_text('At least 1', '#field-steps-wrong')
        self.assertTrue(browser.run("""const box = (id) => document.querySelector(id).getBoundingClientRect();
            return box('#field-steps-wrong').bottom <= box('#field-seed').top"""), 'it lies over another field')
        browser.type('[name=steps]', '4')
        browser.paint('a circle', size='other', width='64', height='65')
        browser.until_text('not a multiple of 16', '#field-height-wrong')
        self.assertEqual(browser.run('return document.activeElement.name'), 'height')
        browser.type('[name=height]', '96')
        browser.button('Paint').click()
        browser.until(browser.has_picture, 'the mended request is not painted')
        self.assertEqual(self.jobs()[-1].size(), (64, 96))

    def test_settings_of_a_picture(self):
        browser = self.browser
        browser.find('[name=prompt]')
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, 'old.png')
            wanted = {'prompt': 'from a file', 'seed': 42, 'steps': 9, 'width': 64, 'height': 80,
                      'method': 'pipefusion', 'num_pipeline_patch': 3}
            file.write_bytes(png(16, 16, 1, 1, wanted))
            browser.find('input[type=file][hidden]').send_keys(str(file))
            browser.until(lambda: browser.find('[name=prompt]').get_attribute('value') == 'from a file', 'no settings')
            file.write_bytes(png(16, 16, 1, 1))
            browser.find('input[type=file][hidden]').send_keys(str(file))
            browser.until_text('has no parameters')
        browser.button('Paint').click()
        browser.until(browser.has_picture, 'the picture does not come')
        request = self.jobs()[0].request
        self.assertEqual({name: request[name] for name in wanted}, wanted)
        browser.type('[name=prompt]', 'another one')
        browser.button('Use these settings').click()
        browser.until(lambda: browser.find('[name=prompt]').get_attribute('value') == 'from a file',
                      'the settings of the picture in the middle do not come')

    def test_a_picture_to_begin_with(self):
        browser = self.browser
        browser.find('[name=prompt]')
        self.assertFalse(browser.find('[name=strength]').is_displayed())
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, 'first.png')
            file.write_bytes(png(16, 16, 1, 1))
            browser.run('document.querySelector("details").open = true')
            browser.find('[name=init_image]').send_keys(str(file))
            mask = pathlib.Path(folder, 'mask.png')
            mask.write_bytes(png(8, 8, 1, 1))
            browser.find('[name=mask_image]').send_keys(str(mask))
            browser.paint('from another', strength='0.5')
            browser.until(browser.has_picture, 'the picture does not come')
            request = self.jobs()[0].request
            self.assertEqual((base64.b64decode(request['init_image']), request['strength']), (file.read_bytes(), 0.5))
            self.assertEqual(base64.b64decode(request['mask_image']), mask.read_bytes())

    def test_a_dropped_picture(self):
        browser = self.browser
        browser.find('[name=prompt]')
        data = list(png(8, 8, 1, 1, {'prompt': 'dropped', 'seed': 3}))
        browser.run('''const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(arguments[0])], 'a.png', {type: 'image/png'}));
            const drop = new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true});
            document.querySelector('main').dispatchEvent(drop);''', data)
        browser.until(lambda: browser.find('[name=prompt]').get_attribute('value') == 'dropped', 'no settings come')

    def test_words_of_others_are_never_markup(self):
        browser = self.browser
        browser.paint(EVIL)
        browser.until(browser.has_picture, 'the picture does not come')
        self.assertIn(EVIL, browser.text('.stage'))
        self.cluster.failures.append(EVIL)
        for view in ('#jobs', '#jobs/1', '#cluster'):
            browser.open(self.server.url + view)
            browser.until_text('<script>', 'main')
        self.assertNotIn('broken in', browser.driver.title)

    def test_keyboard_alone(self):
        browser = self.browser
        browser.find('[name=prompt]')
        browser.run('document.querySelector(".skip").focus()')
        reached = []
        for _ in range(30):
            browser.driver.execute_cdp_cmd('Input.dispatchKeyEvent', {'type': 'keyDown', 'key': 'Tab', 'code': 'Tab',
                                                                       'windowsVirtualKeyCode': 9})
            reached.append(browser.run('const one = document.activeElement;'
                                       'return one.name || `${one.tagName} ${one.textContent.trim()}`'))
            if reached[-1] == 'BUTTON Paint':
                break
        for wanted in ('A Cluster', 'prompt', 'steps', 'seed', 'method', 'SUMMARY More options', 'BUTTON Paint'):
            self.assertIn(wanted, reached)
        self.assertEqual(reached, list(dict.fromkeys(reached)), 'something has the focus twice')
        browser.find('[name=prompt]').send_keys('typed')
        browser.find('[name=prompt]').send_keys('\ue009\ue007')  # Ctrl+Enter
        browser.until(browser.has_picture, 'Ctrl+Enter does not paint')


class Asked(FakeTest):
    settings = {'key': 'open sesame'}

    def test_a_key_is_asked_for_and_remembered(self):
        browser = self.browser
        browser.type('#key-field', 'wrong')
        browser.button('Use this key').click()
        browser.until_text('is not accepted', '#key')
        browser.type('#key-field', 'open sesame')
        browser.button('Use this key').click()
        browser.paint('behind a key')
        browser.until(browser.has_picture, 'the picture does not come')
        browser.driver.refresh()
        browser.until(browser.has_picture, 'the key is forgotten')
        self.assertEqual(browser.all('#key'), [])


class Cluster(FakeTest):
    def test_the_pipeline_and_a_kill(self):
        browser = self.browser
        self.cluster.hold(6)
        self.cluster.seconds_dead = 600
        browser.paint('first', method='pipefusion')
        browser.paint('second', method='pipefusion')
        browser.until(lambda: len(self.jobs()) == 2, 'two jobs were not accepted')
        browser.open(self.server.url + '#cluster')
        browser.choose('.panel-head select', '60')
        browser.until_text('job 2: second', '.legend')
        # Of a copy: Chromium complains of who looks into a canvas again and again.
        busy = 'const copy = new OffscreenCanvas(1100, 118).getContext("2d");' \
            'copy.drawImage(document.querySelector("canvas"), 0, 0);' \
            'const data = copy.getImageData(100, 0, 1000, 118).data;' \
            'const seen = new Set(); for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 3).join());' \
            'return seen.size'
        browser.until(lambda: browser.run(busy) > 8, 'the chart has no slices of several steps')
        label = browser.find('canvas').get_attribute('aria-label')
        self.assertIn('Actor 3: busy', label)
        browser.find('[aria-label="Kill actor 1"]').click()
        browser.button('Keep it').click()
        self.assertEqual(self.cluster.actors[1]['restarts'], 0)
        browser.find('[aria-label="Kill actor 1"]').click()
        browser.button('Kill it').click()
        browser.until_text('Another takes its place')
        browser.until_text('starting', 'table')
        browser.until_text('actor 1 on host-a was killed by signal 9')
        self.cluster.release()
        self.cluster.revive(1)
        browser.until(lambda: all(job.state == 'succeeded' for job in self.jobs()), 'the jobs do not go on')
        self.assertEqual(self.cluster.actors[1]['restarts'], 1)

    def test_the_chart_by_keyboard(self):
        browser = self.browser
        self.cluster.hold(3)
        browser.paint('first')
        browser.open(self.server.url + '#cluster')
        for seconds in ('15', '60', '60'):
            browser.find('canvas').send_keys('-')
            self.assertEqual(browser.find('.panel-head select').get_attribute('value'), seconds)
        browser.until_text('job 1', '.legend')
        browser.find('canvas').send_keys(' ')
        browser.button('Go on')
        browser.find('canvas').send_keys('+')
        self.assertEqual(browser.find('.panel-head select').get_attribute('value'), '15')


class ManyActors(FakeTest):
    settings = {'actors': 64}

    def test_many_actors(self):
        self.browser.open(self.server.url + '#cluster')
        self.browser.until(lambda: len(self.browser.all('tbody tr')) == 64, 'not all actors are there')


class ManyJobs(FakeTest):
    settings = {'jobs': 1000}

    def test_a_thousand_jobs(self):
        browser = self.browser
        browser.open(self.server.url + '#jobs')
        browser.until(lambda: len(browser.all('tbody tr')) == 100, 'the first page does not come')
        for count in range(200, 1001, 100):
            browser.button('Show older jobs').click()
            browser.until(lambda: len(browser.all('tbody tr')) == count, f'the page up to {count} does not come')
        older = browser.all('main > section > button')[-1]
        browser.until(lambda: not older.is_displayed(), 'there is more than all')
        browser.type('[type=search]', 'number 77')
        browser.until(lambda: len(browser.all('tbody tr')) == 11, 'the search does not find 77 and 770 to 779')
        browser.type('[type=search]', ' ')
        browser.choose('.filters select', 'failed')
        browser.until(lambda: len(browser.all('tbody tr')) == 111, 'not the failed ones')

    def test_every_view_fits_a_telephone_and_has_its_title(self):
        browser = self.browser
        browser.paint('Donaudampfschifffahrt' * 20)
        browser.until(browser.has_picture, 'the picture does not come')
        for view in VIEWS:
            browser.open(self.server.url + view)
            browser.find('main h1, main h2')
            self.assertIn('Troupe', browser.driver.title)
            for dark, width in ((False, 360), (False, 1280), (True, 1280), (True, 360)):
                browser.dark(dark)
                browser.resize(width, 780)
                browser.until(lambda: browser.run(AS_ASKED, width, dark), 'the window does not become as it was asked to be')
                time.sleep(0.1)
                with self.subTest(view=view, width=width, dark=dark):
                    self.assertLessEqual(browser.run('return document.documentElement.scrollWidth'), width)
                    self.assertEqual(browser.run(CUT_SELECTS), [])
                    paper = browser.run('return getComputedStyle(document.body).backgroundColor')
                    self.assertEqual(sum(map(int, paper[4:-1].split(','))) < 300, dark, paper)


class Views(FakeTest):
    settings = {'jobs': 3}

    def test_a_job_that_is_not_known(self):
        self.browser.open(self.server.url + '#jobs/999')
        self.browser.until_text('does not know this job')

    def test_a_job_of_a_cluster_of_before_is_nobody_elses(self):
        self.browser.run('localStorage.setItem("troupe.jobs", JSON.stringify(["1-0badcafe"]))')
        self.browser.open(self.server.url + '#jobs/1-0badcafe')
        self.browser.until_text('was started anew')
        self.browser.open(self.server.url)
        self.browser.until_text('no longer on the server')

    def test_report_time_line_and_logs(self):
        browser = self.browser
        browser.paint('watched', method='pipefusion')
        browser.until(browser.has_picture, 'the picture does not come')
        browser.open(self.server.url + '#jobs/4')
        browser.until_text('Where the time went')
        facts = browser.find('.facts').text
        for fact in ('64 × 64 pixels', 'euler', 'pipefusion in 4 patches', 'Steps'):
            self.assertIn(fact, facts)
        browser.until_text('job 4: running', 'pre[aria-label=Logs]')
        browser.until(lambda: 'Actor 3: busy' in str(browser.find('canvas').get_attribute('aria-label')),
                      'there is no time line')

    def test_metrics_are_drawn(self):
        browser = self.browser
        browser.open(self.server.url + '#metrics')
        browser.until(lambda: len(browser.all('path.curve')) > 5, 'there are no curves')
        browser.until_text('succeeded: 0')
        browser.until_text('actor 3: 4.2 GB')
        job = self.cluster.add({'prompt': 'x'})
        job.state, job.ended = 'succeeded', job.created + 1.75
        browser.until_text('half are quicker than: 1.8 s')  # the middle of (1, 2.5], as Prometheus estimates it


class RealTest(unittest.TestCase):
    """The demo's model on two actors, behind `troupe serve`. One cluster for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix='troupe-page-')
        cls.addClassCleanup(cls.folder.cleanup)
        environment = {name: value for name, value in os.environ.items() if not name.startswith('TROUPE_')}
        cls.environment = {**environment, 'XDG_RUNTIME_DIR': cls.folder.name}
        served = cls.serve('--model', str(ROOT / 'examples/demo/model'), '--actors', '2')
        cls.url = served['url'] + '/'
        cls.holds = Holds(TROUPE, served['clusters'][0], env=cls.environment)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    @classmethod
    def serve(cls, *options):
        """Starts `troupe serve`, to be ended with the class; returns what it says of itself."""
        server = subprocess.Popen([TROUPE, 'serve', '--json', '--http', '127.0.0.1:0', *options],
                                  stdout=subprocess.PIPE, text=True, env=cls.environment)
        cls.addClassCleanup(cls.end, server)
        text = ''
        while not text.endswith('}\n'):
            line = server.stdout.readline()
            if not line:
                raise AssertionError(f'troupe serve ended with {server.wait()}')
            text += line
        return json.loads(text)

    @staticmethod
    def end(server):
        server.terminate()
        server.wait(60)
        server.stdout.close()

    def setUp(self):
        self.browser.open(self.url)
        self.browser.run('sessionStorage.clear()')  # what the test before left in the form
        self.browser.driver.refresh()
        self.addCleanup(lambda: self.assertEqual(self.browser.complaints(), []))

    def open(self, view):
        self.browser.open(self.url + view)

    def hold(self, at):
        """Lets the next job stand still there, or the one that is held already, whichever actors it has."""
        self.holds.hold(0, 1, at=at)
        self.addCleanup(self.holds.release, 0, 1)

    def release(self):
        self.holds.release(0, 1)

    def chosen_job(self):
        return self.browser.run('return JSON.parse(localStorage.getItem("troupe.jobs"))[0]')

    def test_paint_and_paint_again_with_its_settings(self):
        browser = self.browser
        browser.find('[name=prompt]')
        self.hold('step 9')
        browser.paint('a red circle above a blue square on a white background', steps='20', seed='5')
        browser.find('img.preview')
        self.release()
        browser.until(browser.has_picture, 'the picture does not come')
        browser.until_text('256 × 256 pixels')
        first = self.chosen_job()
        browser.fill('something else', steps='3', seed='6')
        browser.button('Use these settings').click()
        browser.until(lambda: browser.find('[name=seed]').get_attribute('value') == '5', 'the settings do not come')
        browser.button('Paint').click()
        browser.until(lambda: self.chosen_job() != first, 'nothing is painted')
        browser.until(browser.has_picture, 'the picture does not come again')
        # Degrees that Troupe chooses may differ, and so may the last bits.
        difference = """const [first, second, done] = arguments;
            const pixels = async (job) => {
              const file = await (await fetch(`/api/v1/jobs/${job}/pictures/0`)).blob();
              const pen = new OffscreenCanvas(256, 256).getContext('2d');
              pen.drawImage(await createImageBitmap(file), 0, 0);
              return pen.getImageData(0, 0, 256, 256).data;
            };
            Promise.all([pixels(first), pixels(second)])
              .then(([a, b]) => done(a.reduce((most, one, i) => Math.max(most, Math.abs(one - b[i])), 0)));"""
        self.assertLessEqual(browser.driver.execute_async_script(difference, first, self.chosen_job()), 2)

    def test_cancel_and_reload(self):
        browser = self.browser
        self.hold('step 3')
        browser.paint('a blue square', steps='20')
        browser.until_text('Step ', '.stage')
        browser.driver.refresh()
        browser.until_text('a blue square', '.stage')
        browser.find('img.preview')
        browser.button('Cancel').click()
        browser.until_text('Cancelled')

    def test_a_killed_actor_and_a_job_that_goes_on(self):
        browser = self.browser
        self.hold('step 3')
        browser.paint('a green circle', steps='20', method='pipefusion', sharing='hand', pp='2')
        browser.until_text('Step ', '.stage')
        job = self.chosen_job()
        self.open('#cluster')
        browser.choose('.panel-head select', '60')
        browser.until_text('pipeline stage 2 of 2', 'table')
        self.holds.go_on(0, 1, at='step 6')
        browser.until_text(f'job {job}: a green circle', '.legend')
        self.holds.held(0, 1)
        self.hold('step 9')
        browser.find('[aria-label="Kill actor 1"]').click()
        browser.button('Kill it').click()
        browser.until_text('Another takes its place')
        browser.until(lambda: browser.all('tbody tr')[1].find_elements('css selector', 'td')[7].text == '1',
                      'no other actor takes the place')
        self.open(f'#jobs/{job}')
        browser.until_text('goes on from step', '.stage')
        began_again = browser.until_step(1)
        self.holds.go_on(0, 1, at='step 12')
        browser.until_step(began_again + 1)
        browser.button('Refresh').click()
        browser.until(lambda: 'Actor 1: busy' in str(browser.find('canvas').get_attribute('aria-label')),
                      'there is no time line')
        number = job.split('-')[0]  # in logs jobs are called by their numbers alone
        browser.until(lambda: f'job {number}: ' in browser.text('pre[aria-label=Logs]'), 'there are no logs')
        browser.button('Cancel').click()
        browser.until_text('Cancelled')

    def test_a_refusal_of_the_model(self):
        browser = self.browser
        browser.paint('x', size='other', width='256', height='257')
        browser.until(lambda: '257' in browser.text('form'), 'the refusal is not shown')

    def test_metrics(self):
        self.browser.paint('x', steps='4')
        self.browser.until(self.browser.has_picture, 'the picture does not come')
        self.open('#metrics')
        self.browser.until(lambda: len(self.browser.all('path.curve')) > 5, 'there are no curves')
        self.browser.until_text('actor 1:')

    def test_a_lost_controller(self):
        run = lambda *words: subprocess.run([TROUPE, *words], env=self.environment, check=True, capture_output=True)
        endpoint = f'ipc://{self.folder.name}/other.sock'
        run('start', '--listen', endpoint, '--model', str(ROOT / 'examples/demo/model'), '--detach')
        pid = json.loads(run('status', '--connect', endpoint, '--json').stdout)['pid']
        self.browser.open(self.serve('--connect', endpoint)['url'] + '/')
        self.browser.find('[name=prompt]')
        os.kill(pid, signal.SIGKILL)
        self.browser.until_text('Nothing can be painted now', '#connection')
        run('start', '--listen', endpoint, '--model', str(ROOT / 'examples/demo/model'), '--detach')
        self.addCleanup(run, 'stop', '--connect', endpoint)
        self.browser.until(lambda: not self.browser.find('#connection').is_displayed(), 'the cluster stays lost')
        self.browser.paint('x', steps='4')
        self.browser.until(self.browser.has_picture, 'the picture does not come')


def main():
    global TROUPE, OPTIONS
    chosen = sys.argv[1:2]
    real = chosen == ['cluster']
    if len(sys.argv) < 3 or not real and chosen != ['fake']:
        print(__doc__)
        return 2
    missing = what_is_missing()
    if missing:
        print(f'skipped: {missing} not found (Debian: apt-get install chromium chromium-driver python3-selenium)')
        return 77
    if real:
        TROUPE = str(pathlib.Path(sys.argv[2], 'troupe'))
    else:
        OPTIONS = options_of(sys.argv[2])
    tests = [one for one in globals().values()
             if isinstance(one, type) and issubclass(one, unittest.TestCase) and (one is RealTest) == real]
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f'*{pattern}*' for pattern in sys.argv[3:]] or None
    suite = unittest.TestSuite(map(loader.loadTestsFromTestCase, tests))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if FakeTest.browser:
        FakeTest.browser.close()
    return 0 if result.wasSuccessful() else 1


if __name__ == '__main__':
    sys.exit(main())

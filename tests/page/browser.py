"""Debian's Chromium as a person would use it, through python3-selenium and chromium-driver."""
import re
import shutil
import time

try:
    from selenium import webdriver
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select
except ImportError:
    webdriver = None

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
DRIVER = shutil.which('chromedriver')
PATIENCE = 60


def what_is_missing():
    """What has to be installed for these tests; "" where nothing has to."""
    missing = [package for package, found in (('chromium', CHROMIUM), ('chromium-driver', DRIVER),
                                              ('python3-selenium', webdriver)) if not found]
    return ', '.join(missing)


class Browser:
    """A window with a profile of its own: two of them are two people."""

    def __init__(self, width=1280, height=900):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ('--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--lang=en-GB'):
            options.add_argument(argument)
        options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
        self.driver = webdriver.Chrome(service=Service(DRIVER), options=options)
        self.resize(width, height)

    def close(self):
        self.driver.quit()

    def resize(self, width, height):
        self.driver.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', {
            'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 500})

    def dark(self, dark):
        self.driver.execute_cdp_cmd('Emulation.setEmulatedMedia', {
            'features': [{'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}]})

    def open(self, url):
        self.driver.get(url)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def find(self, selector):
        return self.until(lambda: next(iter(self.all(selector)), None), f'there is no {selector}')

    def text(self, selector='main'):
        return self.find(selector).text

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def choose(self, selector, value):
        Select(self.find(selector)).select_by_value(value)

    def type(self, selector, text):
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def button(self, words):
        """The visible button that says `words`."""
        def look():
            return next((one for one in self.all('button') if one.is_displayed() and one.text.strip() == words), None)
        return self.until(look, f'there is no button "{words}"')

    def until(self, condition, otherwise):
        """What `condition` returns, as soon as that is true."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                found = condition()
            except StaleElementReferenceException:
                found = None
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f'{otherwise}; the page says:\n{self.text("body")}')
            time.sleep(0.05)

    def until_text(self, words, selector='body'):
        self.until(lambda: words in self.text(selector), f'"{words}" does not come')

    def until_step(self, least):
        """The step that the job in the middle is at: this one or a later one."""
        def come():
            step = re.search(r'Step (\d+) of', self.text('.stage'))
            return step and int(step.group(1)) >= least and int(step.group(1))
        return self.until(come, f'step {least} does not come')

    def complaints(self):
        """What the console complains of: exceptions, and what the content security policy forbids. Answers with an
        error status are the server's business."""
        return [entry['message'] for entry in self.driver.get_log('browser')
                if entry['level'] in ('SEVERE', 'WARNING') and entry['source'] != 'network']

    def fill(self, prompt, **fields):
        self.type('[name=prompt]', prompt)
        for name, value in fields.items():
            field = self.find(f'[name={name}]')
            details = self.run('return arguments[0].closest("details")', field)
            if details:
                self.run('arguments[0].open = true', details)
            if field.tag_name == 'select':
                self.choose(f'[name={name}]', value)
            else:
                self.type(f'[name={name}]', value)

    def paint(self, prompt, **fields):
        self.fill(prompt, **fields)
        self.button('Paint').click()

    def has_picture(self):
        """Whether the picture in the middle has come whole."""
        return self.run('const image = document.querySelector(".pictures img:not(.preview)");'
                        'return image !== null && image.complete && image.naturalWidth > 0')
